"""Calls of DTensors: whether their placements make them the same operation on the parts of one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format.records import decode_forward, decode_value, parse_api_name
from pytest_msprobe.cases.case import is_of_parts, reason_gradients_moved, reason_not_local, with_own_part
from pytest_msprobe.engines.protocol import Call


def tensor(shape: list[int], placement: str = "", whole: list[int] | None = None) -> dict[str, Any]:
    """The entry of a tensor in a dump, of a DTensor on two ranks where it has a placement."""
    entry = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape, "Max": 1, "Min": 0, "Mean": 1, "Norm": 1}
    if placement:
        entry["dtensor"] = {
            "placements": [placement],
            "mesh": [0, 1],
            "mesh_dim_names": None,
            "global_shape": whole or shape,
        }
    return entry


def reason(name: str, arguments: list[Any], output: Any) -> str:
    encoded = {"input_args": arguments, "input_kwargs": {}, "output": [output]}
    forward = decode_forward(encoded, file="dump.json", record=f"{name}.forward")
    given = tuple(np.ones(item["shape"], "float32") if isinstance(item, dict) else item for item in arguments)
    call = Call(parse_api_name(name), "pytorch", given, {})
    assert is_of_parts(forward) == ("dtensor" in str(arguments))
    return reason_not_local(forward, call)


X, WEIGHT = tensor([4, 6, 8], "S(2)", [4, 6, 16]), tensor([8, 8], "S(1)", [8, 16])


@pytest.mark.parametrize(
    ("name", "arguments", "output"),
    [
        ("Functional.linear.0", [X, WEIGHT, tensor([8], "R")], tensor([4, 6, 8], "P(sum)")),
        ("Tensor.__add__.0", [tensor([3], "S(0)", [6]), tensor([3], "S(0)", [6])], tensor([3], "S(0)", [6])),
        ("Tensor.mul.0", [tensor([3], "P(sum)")], tensor([3], "P(sum)")),
        ("Functional.gelu.0", [tensor([3], "R")], tensor([3], "R")),
        ("Functional.gelu.0", [tensor([3])], tensor([3])),
        ("Tensor.sum.0", [tensor([3], "S(0)", [6])], tensor([], "P(sum)")),
    ],
)
def test_local_calls_are_judged(name: str, arguments: list[Any], output: Any) -> None:
    assert reason(name, arguments, output) == ""


@pytest.mark.parametrize(
    ("arguments", "output", "words"),
    [
        ([tensor([3], "P(sum)")], tensor([3], "R"), "adds up the partial sums"),
        ([tensor([3], "P(sum)"), tensor([3], "R")], tensor([3], "P(sum)"), "adds up the partial sums"),
        ([tensor([3], "S(0)", [6])], tensor([6], "R"), "gathers an argument"),
        ([tensor([6], "R")], tensor([3], "S(0)", [6]), "cuts an argument"),
        ([tensor([6], "R"), tensor([3], "S(0)", [6])], tensor([3], "S(0)", [6]), "cuts or moves"),
        ([tensor([4, 8], "S(0)", [8, 8])], tensor([8, 4], "S(1)", [8, 8]), "cuts or moves"),
        ([tensor([3], "S(0)", [6]), tensor([], "R")], tensor([], "P(sum)"), "divides a whole value"),
    ],
)
def test_calls_that_move_values_between_ranks_are_not(arguments: list[Any], output: Any, words: str) -> None:
    assert words in reason("Tensor.add.0", arguments, output)


def test_a_rank_adds_its_share_of_a_whole_bias() -> None:
    encoded = {"input_args": [X, WEIGHT, tensor([8], "R")], "input_kwargs": {}, "output": [tensor([4, 6, 8], "P(sum)")]}
    forward = decode_forward(encoded, file="dump.json", record="Functional.linear.0.forward")
    bias = np.full(8, 3, "float32")
    call = Call(parse_api_name("Functional.linear.0"), "pytorch", (np.ones(1), np.ones(1), bias), {})
    share = with_own_part(call, forward).arguments[2]
    assert (share.dtype, share.tolist()) == (np.float32, [1.5] * 8)


def test_gradients_that_were_reduced_are_not_judged() -> None:
    part, whole, partial = (tensor([3], place, [6]) for place in ("S(0)", "R", "P(sum)"))
    values = [(decode_value(entry),) for entry in (part, whole, partial)]
    assert "reduced" in reason_gradients_moved(values[0], values[1])
    assert reason_gradients_moved(values[0], values[2]) == ""
    assert reason_gradients_moved(values[1], values[1]) == ""


@pytest.mark.parametrize("spread", [3, {}, {"placements": [1], "mesh": [0], "global_shape": [3]}, {"placements": []}])
def test_what_is_no_spread_is_passed_over(spread: Any) -> None:
    assert decode_value({**tensor([3]), "dtensor": spread}).spread is None
