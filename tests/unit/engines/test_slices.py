"""The benchmark of large calls in slices: the same bits, no more at once than a slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.apis.fact_table import FOLDER, _facts
from pytest_msprobe.engines import slices, torch_engine
from pytest_msprobe.engines.protocol import Call, LeafPath
from pytest_msprobe.engines.slices import SlicedExecution

TOPICS = ("slices", "elementwise", "elementary")
_ROWS, _LENGTH = 37, 130
#: Name, shapes of tensors or plain values; whether it is cut.
CALLS: dict[str, tuple[str, tuple[Any, ...], bool]] = {
    "one tensor": ("Mint.exp", ((_ROWS, _LENGTH),), True),
    "two of one shape": ("Mint.mul", ((_ROWS, _LENGTH), (_ROWS, _LENGTH)), True),
    "a tensor and a number": ("Mint.add", ((_ROWS, _LENGTH), 2.5), True),
    "a vector for all rows": ("Mint.mul", ((_ROWS, _LENGTH), (_LENGTH,)), True),
    "a number for each row": ("Mint.div", ((_LENGTH, _ROWS), (_LENGTH, 1)), True),
    "three axes": ("Mint.sub", ((3, _ROWS, _LENGTH), (1, 1, _LENGTH)), True),
    "rows": ("MintFunctional.softmax", ((3, _ROWS, _LENGTH), -1), True),
    "rows, by number": ("MintFunctional.log_softmax", ((_ROWS, _LENGTH), 1), True),
    "no axis in common": ("Mint.add", ((_LENGTH, 1), (1, _LENGTH)), False),
    "along the rows": ("MintFunctional.softmax", ((_ROWS, _LENGTH), 0), False),
    "axis left open": ("MintFunctional.softmax", ((_ROWS, _LENGTH), None), False),
    "a function of all": ("Mint.cumsum", ((_ROWS, _LENGTH), -1), False),
    "may write in place": ("MintFunctional.relu", ((_ROWS, _LENGTH), True), False),
    "places": ("Mint.where", ((_ROWS * _LENGTH,),), False),
}


def _array(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32)


def _call(case: str) -> tuple[Call, tuple[LeafPath, ...]]:
    name, given, _ = CALLS[case]
    arguments = tuple(_array(value, place) if isinstance(value, tuple) else value for place, value in enumerate(given))
    tensors = [("input", place) for place, value in enumerate(given) if isinstance(value, tuple)]
    return Call(parse_api_name(f"{name}.0"), "mindspore", arguments, {}), tuple(tensors)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> torch_engine.TorchEngine:
    """The benchmark, which cuts small calls into many slices."""
    pytest.importorskip("torch").set_num_threads(1)
    monkeypatch.setattr(torch_engine, "FEWEST_SLICED", 64)
    monkeypatch.setattr(slices, "_SLICE", 512)
    return torch_engine.TorchEngine(is_raised=True)


@pytest.mark.parametrize("case", [name for name, (*_, is_cut) in CALLS.items() if is_cut])
def test_slices_give_the_bits_of_the_whole_call(case: str, engine: torch_engine.TorchEngine) -> None:
    call, wanted = _call(case)
    whole, cut = engine._whole(call, wanted), engine.forward(call, differentiate=wanted)
    assert isinstance(cut, SlicedExecution)
    (expected,), (found,) = whole.outputs, cut.outputs
    assert found.path == expected.path
    assert found.value.dtype == np.float64
    np.testing.assert_array_equal(found.value, expected.value, strict=True)
    incoming = (_array(expected.value.shape, 9),)
    for own, other in zip(cut.gradients(incoming), whole.gradients(incoming), strict=True):
        np.testing.assert_array_equal(own, other, strict=True)
    np.testing.assert_array_equal(cut.outputs[0].value, expected.value)


@pytest.mark.parametrize("case", [name for name, (*_, is_cut) in CALLS.items() if not is_cut])
def test_what_is_not_made_place_by_place_runs_as_a_whole(case: str, engine: torch_engine.TorchEngine) -> None:
    call, wanted = _call(case)
    wanted = () if case == "places" else wanted
    assert isinstance(engine.forward(call, differentiate=wanted), torch_engine.TorchExecution)


def test_no_run_gets_more_than_a_slice_and_outputs_go_before_the_gradients(engine: torch_engine.TorchEngine) -> None:
    call, wanted = _call("two of one shape")
    sizes = []

    def run(part: Call, differentiate: tuple[LeafPath, ...]) -> Any:
        sizes.append(max(value.size for value in part.arguments))
        return engine._whole(part, differentiate)

    execution = slices.run_sliced(run, call, wanted)
    count = -(-_ROWS * _LENGTH // 512)
    assert (len(sizes), max(sizes)) == (count, 512)
    assert execution.outputs[0].value.base is execution.outputs[0].value.base
    assert len(sizes) == count
    execution.gradients((_array((_ROWS, _LENGTH)),))
    assert (len(sizes), max(sizes)) == (2 * count, 512)
    assert execution._outputs is None


def test_moved_arithmetic_is_not_cut(engine: torch_engine.TorchEngine) -> None:
    call, wanted = _call("one tensor")
    moved = Call(call.api, call.framework, call.arguments, {}, saved_roundoff=2.0**-24)
    assert isinstance(engine.forward(moved, differentiate=wanted), torch_engine.TorchExecution)


def test_incoming_gradients_that_are_no_array_of_the_output_are_for_the_whole_call(
    engine: torch_engine.TorchEngine,
) -> None:
    call, wanted = _call("one tensor")
    incoming = (np.asfortranarray(_array((_ROWS, _LENGTH))), None)
    (found,) = engine.forward(call, differentiate=wanted).gradients(incoming)
    (expected,) = engine._whole(call, wanted).gradients(incoming)
    np.testing.assert_array_equal(found, expected)


def test_every_name_is_known_to_add_up_nothing_or_to_be_a_function_of_rows() -> None:
    known = {topic: {fact.name for _, fact in _facts((FOLDER / f"{topic}.txt").read_text())} for topic in TOPICS}
    assert known["slices"]
    assert known["slices"] <= known["elementwise"] | known["elementary"]
