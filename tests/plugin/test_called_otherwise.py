"""Two runs that call an operation with other arguments, or in another place of the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder

RNG = np.random.default_rng(0)
X, WEIGHT = RNG.standard_normal((4, 6)).astype(np.float32), RNG.random(6).astype(np.float32) + 1


def write(folder: Path, arguments: list[Any], *, real: bool = True) -> None:
    """A step that scales its rows by `layer_norm`, and one operation behind it."""
    weight = next((one for one in arguments[2:] if one is not None), 1.0)
    deviation = np.sqrt(X.var(1, keepdims=True) + 1e-5)
    made = ((X - X.mean(1, keepdims=True)) / deviation * weight).astype(np.float32)
    builder = DumpBuilder(folder / "step0" / "rank0", framework="pytorch", real=real)
    builder.call("Functional.layer_norm.0", arguments, [made])
    builder.call("Torch.exp.0", [made], [np.exp(made)])
    builder.write()


def answer(pytester: pytest.Pytester) -> dict[str, Any]:
    pytester.runpytest("--msprobe-dump=a", "--msprobe-golden=b", "--msprobe-diagnosis=d.json", "--msprobe-out=out")
    found: dict[str, Any] = json.loads((pytester.path / "d.json").read_text())
    return found


@pytest.mark.needs("torch")
@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_tensor_that_one_run_gives_is_named(pytester: pytest.Pytester, is_swapped: bool) -> None:
    for side, arguments in zip("ba" if is_swapped else "ab", ([X, [6]], [X, [6], WEIGHT])):
        write(pytester.path / side, arguments)
    found = answer(pytester)
    assert found["outcome"] == "wrong"
    (fault,) = found["findings"]
    assert (fault["kind"], fault["place"]["record"]) == ("defined", "Functional.layer_norm.0.forward")
    given = "tensor against none" if is_swapped else "none against tensor"
    assert f"called otherwise: input.2 {given}" in fault["detail"]


def test_statistics_name_it_as_what_differs_first(pytester: pytest.Pytester) -> None:
    for side, arguments in zip("ab", ([X, [6]], [X, [6], WEIGHT])):
        write(pytester.path / side, arguments, real=False)
    fault = answer(pytester)["findings"][0]
    assert (fault["kind"], fault["place"]["record"]) == ("arguments", "Functional.layer_norm.0.forward")
    assert "called otherwise: input.2 none against tensor" in fault["detail"]


@pytest.mark.needs("torch")
def test_none_is_no_argument(pytester: pytest.Pytester) -> None:
    for side, arguments in zip("ab", ([X, [6]], [X, [6], None])):
        write(pytester.path / side, arguments)
    assert answer(pytester)["outcome"] == "right"


def placed(folder: Path, name: str, keywords: dict[str, Any]) -> None:
    """A step that holds one call with keywords as a dump writes them."""
    builder = DumpBuilder(folder / "step0" / "rank0", framework="pytorch")
    builder.call(name, [X], [X])
    builder.records[f"{name}.forward"]["input_kwargs"] = keywords
    builder.write()


DEVICE, GROUP = "torch.device", "torch.ProcessGroup"


@pytest.mark.parametrize(
    ("name", "target", "golden"),
    [
        ("Tensor.to.0", {"device": {"type": DEVICE, "value": "cuda:0"}}, {"device": {"type": DEVICE, "value": "cpu"}}),
        ("Tensor.to.0", {"non_blocking": {"type": "bool", "value": True}}, {}),
        ("Tensor.to.0", {"memory_format": {"type": "torch.memory_format", "value": "torch.channels_last"}}, {}),
        ("Distributed.all_reduce.0", {"group": {"type": "str", "value": "tp-0-1"}}, {"group": None}),
        (
            "Distributed.all_reduce.0",
            {"group": {"type": GROUP, "group_ranks": [0, 1], "group_id": "a"}},
            {"group": {"type": GROUP, "group_ranks": [0, 1], "group_id": "b"}},
        ),
    ],
)
def test_where_and_how_is_no_difference(
    pytester: pytest.Pytester, name: str, target: dict[str, Any], golden: dict[str, Any]
) -> None:
    placed(pytester.path / "a", name, target)
    placed(pytester.path / "b", name, golden)
    found = answer(pytester)
    assert (found["outcome"], found["findings"]) == ("right", [])


def test_groups_of_other_ranks_are_an_argument_and_not_a_number_that_is_not_finite(pytester: pytest.Pytester) -> None:
    for side, ranks in (("a", [0, 1]), ("b", [0, 2])):
        group = {"type": GROUP, "group_ranks": ranks, "group_id": side}
        placed(pytester.path / side, "Distributed.all_reduce.0", {"group": group})
    found = answer(pytester)
    assert "not finite" not in json.dumps(found)
    assert "[0, 1]" in json.dumps(found)
