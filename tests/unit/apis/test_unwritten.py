"""Memory that is not written yet: one table, held to the signatures of both frameworks, asked by every suite."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import UnwrittenMemory, random_api, reason_not_judged, unwritten_memory

MODULES = {"MintDistributed": "mindspore.mint.distributed", "Functional": "mindspore.ops.communication"}


def test_paths_of_values() -> None:
    memory = UnwrittenMemory(outputs=frozenset("0"), inputs=frozenset({"1", "out"}))
    assert memory.covers("output.0")
    assert memory.covers("output.0.2")
    assert memory.covers("input.1.0")
    assert memory.covers("input.out")
    assert not memory.covers("input.0")
    assert not memory.covers("output.1")


@pytest.mark.parametrize("name", ["Aten.empty_like", "NPU.empty_with_format", "Torch.empty_permuted", "Mint.empty"])
def test_memory_under_every_type(name: str) -> None:
    assert unwritten_memory(name, "pytorch", "mixed").covers("output.0")
    assert unwritten_memory("Primitive.held.Empty", "mindspore", "mixed").covers("output.0")
    assert unwritten_memory("Cell.empty.Dense", "mindspore", "mixed") == UnwrittenMemory()


def test_what_counts_in_part() -> None:
    assert unwritten_memory("MintDistributed.batch_isend_irecv", "mindspore", "mixed").covers("input.0.1")
    assert not unwritten_memory("MintDistributed.batch_isend_irecv", "mindspore", "overwritten").covers("input.0.1")
    assert unwritten_memory("Tensor.masked_fill_", "pytorch", "overwritten").covers("input.0")
    assert not unwritten_memory("Tensor.masked_fill_", "pytorch", "mixed").covers("input.0")


def test_outputs_that_a_kernel_leaves_as_they_were_beside_others() -> None:
    memory = unwritten_memory("Primitive.bn_train.BatchNorm", "mindspore", "mixed")
    assert [memory.covers(f"output.{place}") for place in range(5)] == [False, True, True, True, True]
    assert random_api(parse_api_name("Primitive.bn_train.BatchNorm.0"), "mindspore") is None
    assert reason_not_judged(parse_api_name("Primitive.bn_train.BatchNorm.0")) is None


def test_resize_in_place_is_not_numpys_resize() -> None:
    assert unwritten_memory("Tensor.resize_", "mindspore", "mixed").covers("output.0")
    assert unwritten_memory("Tensor.resize", "mindspore", "mixed") == UnwrittenMemory()
    assert reason_not_judged(parse_api_name("Tensor.resize_.0")) == "uninitialised memory: its values mean nothing"
    assert reason_not_judged(parse_api_name("Tensor.resize.0")) is None


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
def test_buffers_stand_where_the_signatures_say(framework: str) -> None:
    """Each `inputs(position, "keyword")` names one parameter of the function that is installed."""
    pytest.importorskip("mindspore" if framework == "mindspore" else "torch")
    checked = 0
    for name, fact in facts("unwritten").typed(framework).items():
        api_type, _, api = name.partition(".")
        module = "torch.distributed" if framework == "pytorch" else MODULES.get(api_type, "mindspore.ops.communication")
        function: Any = getattr(importlib.import_module(module), api, None)
        if (
            not fact.text.startswith("inputs(")
            or function is None
            or (framework == "pytorch") != (api_type == "Distributed")
        ):
            continue
        places = unwritten_memory(name, framework, "mixed").inputs
        keyword = next(place for place in places if not place.isdigit())
        numbers = [int(place) for place in places if place.isdigit()]
        parameters = list(inspect.signature(function).parameters)
        assert keyword in parameters, name
        assert numbers in ([], [parameters.index(keyword)]), name
        checked += 1
    assert checked >= 10
