"""Outputs that are wrong as a whole are refused or not judged, also of APIs that jump with an argument; indices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import Dump
from pytest_msprobe.engines.protocol import parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.numerics.indices import SelectedValues
from pytest_msprobe.numerics.judgement import CosineMaxAbs, Standard
from pytest_msprobe.numerics.standards.backward_error import BackwardError
from pytest_msprobe.suites.precheck.check import CallCheck, CheckSettings
from pytest_msprobe.suites.precheck.suite import SHOWING_ROUNDING

pytestmark = pytest.mark.needs("torch")

_RNG = np.random.default_rng(5)
IMAGE = _RNG.standard_normal((2, 2, 6, 6)).astype(np.float32)
VOLUME = _RNG.standard_normal((1, 1, 4, 4, 4)).astype(np.float32)
ROWS = _RNG.standard_normal((5, 8)).astype(np.float32)
EDGES = np.sort(_RNG.standard_normal(7)).astype(np.float32)
LINE = (np.arange(6, dtype=np.float32) * 2 + 1) / 6 - 1
#: Coordinates that are whole numbers of pixels, which any rounding moves to the neighbouring one.
GRID = np.stack(np.broadcast_arrays(LINE[None, None, :], LINE[None, :, None]), -1).repeat(2, 0)
GRID_OF_VOLUME = _RNG.uniform(-1, 1, (1, 4, 4, 4, 3)).astype(np.float32)

CALLS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "bilinear": ("Functional.grid_sample", [IMAGE, GRID], {"mode": "bilinear", "align_corners": False}),
    "bicubic": ("Functional.grid_sample", [IMAGE, GRID], {"mode": "bicubic", "align_corners": False}),
    "nearest": ("Functional.grid_sample", [IMAGE, GRID], {"mode": "nearest", "align_corners": False}),
    "volume": ("Functional.grid_sample", [VOLUME, GRID_OF_VOLUME], {"align_corners": False}),
    "enlarged": ("Functional.interpolate", [IMAGE], {"scale_factor": 1.7, "mode": "bicubic"}),
    "floor": ("Torch.floor", [4 * ROWS], {}),
    "round": ("Torch.round", [4 * ROWS], {}),
    "remainder": ("Torch.remainder", [ROWS, 0.25], {}),
    "floor division": ("Torch.floor_divide", [ROWS, 0.25], {}),
    "sorted": ("Torch.sort", [ROWS], {}),
    "quantile": ("Torch.quantile", [ROWS, 0.3], {}),
    "histogram": ("Torch.histc", [ROWS], {}),
    "comparison": ("Torch.heaviside", [ROWS, EDGES[:1]], {}),
    "quantised": ("Torch.fake_quantize_per_tensor_affine", [ROWS, 0.1, 0, -128, 127], {}),
}
WRONG: dict[str, Callable[[Any], Any]] = {
    "zeros": np.zeros_like,
    "x 1.2": lambda right: (1.2 * right.astype(np.float64)).astype(right.dtype),
    "moved": lambda right: np.roll(right.reshape(-1), 1).reshape(right.shape),
}

BY_ROUNDING = BackwardError()


def verdict(
    folder: Path,
    api: str,
    arguments: list[Any],
    keywords: dict[str, Any],
    outputs: list[Any],
    standard: Standard = BY_ROUNDING,
) -> str:
    builder = DumpBuilder(folder, framework="pytorch")
    dump = Dump(builder.call(f"{api}.0", arguments, outputs, keywords=keywords).write())
    engines = Engines(EngineChoice(parse_device("recorded"), "torch", None))
    settings = CheckSettings(seed=0, max_memory_bytes=1 << 30, standard=standard)
    check = CallCheck(dump, f"{api}.0", engines, settings, directions=("forward",))
    found = check.run("forward")
    check.close()
    return f"{found.status} {found.message}" if found.status == "skip" else found.status


def computed(api: str, arguments: list[Any], keywords: dict[str, Any]) -> list[Any]:
    import torch

    owner = torch.nn.functional if api.startswith("Functional.") else torch
    given = [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in arguments]
    found = getattr(owner, api.partition(".")[2])(*given, **keywords)
    return [np.asarray(value.numpy()) for value in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("name", CALLS)
def test_wrong_outputs_are_refused_or_not_judged_and_right_ones_pass(tmp_path: Path, name: str) -> None:
    api, arguments, keywords = CALLS[name]
    right, *others = computed(api, arguments, keywords)
    assert verdict(tmp_path / "right", api, arguments, keywords, [right, *others]) == "pass"
    for fault, change in WRONG.items():
        wrong = np.asarray(change(right))
        if not np.array_equal(wrong, right):
            found = verdict(tmp_path / fault, api, arguments, keywords, [wrong, *others])
            assert found == "error" or found.startswith("skip about as large as its own rounding"), f"{fault}: {found}"


#: Sums that cancel to a rounding of their terms, 1e-6, and to some of them: what two orders of adding make of them has
#: no direction in common.
CANCELS = (ROWS - ROWS.mean(1, keepdims=True)).repeat(16, 1)
ONE_ORDER, OTHER_ORDER = CANCELS.sum(1), CANCELS[:, ::-1].cumsum(1, dtype=np.float32)[:, -1]


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (OTHER_ORDER, "skip about as large as its own rounding"),
        (OTHER_ORDER + np.float32(5e-5), "error"),  # not a rounding of these terms
        (OTHER_ORDER + np.float32(2e-3), "error"),  # beyond the other limit
    ],
)
def test_a_cosine_does_not_judge_what_is_all_rounding(tmp_path: Path, output: Any, found: str) -> None:
    assert abs(np.corrcoef(ONE_ORDER, OTHER_ORDER)[0, 1]) < 0.9
    said = verdict(tmp_path, "Torch.sum", [CANCELS, 1], {}, [output], CosineMaxAbs())
    assert said.startswith(found), said


def test_indices_are_judged_by_what_they_select_whatever_the_standard(tmp_path: Path) -> None:
    tied = np.array([3.0, 1.0, 3.0, 2.0], np.float32)
    for at, status in ((0, "pass"), (2, "pass"), (3, "error"), (4, "error")):
        builder = DumpBuilder(tmp_path / str(at), framework="pytorch")
        dump = Dump(builder.call("Torch.argmax.0", [tied], [np.array(at)]).write())
        engines = Engines(EngineChoice(parse_device("recorded"), "torch", None))
        settings = CheckSettings(seed=0, max_memory_bytes=1 << 30, standard=BackwardError())
        check = CallCheck(dump, "Torch.argmax.0", engines, settings, directions=("forward",))
        (output,) = check.run("forward").outputs
        check.close()
        assert (output.status, output.standard) == (status, SelectedValues.name)
    assert SelectedValues.name in SHOWING_ROUNDING
