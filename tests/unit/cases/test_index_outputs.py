"""Which outputs are indices and along which axis; the oracle is what the APIs themselves return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import ApiName, find_dtype
from pytest_msprobe.apis.fact_table import index_output
from pytest_msprobe.cases.call_run import source_and_axis
from pytest_msprobe.engines.protocol import Call, NumpyArgument

SOURCE = np.random.default_rng(0).permutation(24).reshape(4, 6).astype(np.float32)


def call(api_type: str, api: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
    return Call(ApiName(api_type, api, 0), "mindspore", arguments, keywords)


def axis_of(api_type: str, api: str, *arguments: Any, **keywords: Any) -> int | None:
    described = index_output(ApiName(api_type, api, 0))
    assert described is not None
    found = source_and_axis(call(api_type, api, (SOURCE, *arguments), keywords), described)
    assert found is not None
    assert found[0] is SOURCE
    return found[1]


TORCH_CALLS = [
    ("topk", (2,), {}),
    ("topk", (2, 0), {}),
    ("topk", (), {"k": 2, "dim": 0}),
    ("sort", (), {}),
    ("sort", (0,), {}),
    ("sort", (), {"dim": 0, "descending": True}),
    ("sort", (), {"stable": True}),
    ("argsort", (), {}),
    ("argsort", (0,), {}),
    ("argmax", (), {}),
    ("argmax", (1,), {}),
    ("argmin", (), {"dim": 0}),
    ("max", (1,), {}),
    ("min", (), {"dim": 0, "keepdim": True}),
    ("median", (0,), {}),
    ("nanmedian", (), {"dim": 1}),
    ("mode", (), {}),
    ("mode", (0,), {}),
    ("kthvalue", (2,), {}),
    ("kthvalue", (2, 0), {}),
    ("cummax", (0,), {}),
    ("cummin", (1,), {}),
]


@pytest.mark.parametrize(("api", "arguments", "keywords"), TORCH_CALLS)
def test_the_described_output_holds_indices_along_the_described_axis(
    api: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    returned = getattr(torch, api)(torch.from_numpy(SOURCE), *arguments, **keywords)
    outputs = [returned.numpy()] if isinstance(returned, torch.Tensor) else [item.numpy() for item in returned]
    described = index_output(ApiName("Mint", api, 0))
    assert described is not None
    indices = outputs[described.position]
    assert indices.dtype == np.int64
    axis = axis_of("Mint", api, *arguments, **keywords)
    selected = _selected(indices, axis)
    if len(outputs) == 2:
        assert np.array_equal(selected, outputs[1 - described.position])
    else:  # argsort, argmax and argmin return no values
        wanted = {"argsort": np.sort, "argmax": np.max, "argmin": np.min}[api]
        assert np.array_equal(selected, wanted(SOURCE, axis=axis))
    if described.is_selection:
        lines = np.moveaxis(indices, axis, -1).reshape(-1, indices.shape[axis])
        assert all(len(set(line.tolist())) == len(line) for line in lines)


def _selected(indices: np.ndarray, axis: int | None) -> np.ndarray:
    if axis is None:
        return SOURCE.reshape(-1)[indices]
    if indices.ndim == SOURCE.ndim:
        return np.take_along_axis(SOURCE, indices, axis)
    return np.take_along_axis(SOURCE, np.expand_dims(indices, axis), axis).squeeze(axis)


@pytest.mark.parametrize(
    ("api_type", "api", "arguments", "keywords", "axis"),  # seen on MindSpore 2.10
    [
        ("Functional", "argmax", (), {}, None),
        ("Functional", "argmin", (), {}, None),
        ("Functional", "argmin", (), {"axis": 0}, 0),
        ("Functional", "argsort", (), {}, -1),
        ("Functional", "median", (), {}, -1),
        ("Functional", "nanmedian", (), {}, -1),
        ("Tensor", "median", (), {}, -1),
        ("Functional", "topk", (2, None), {}, -1),
        ("Functional", "topk", (2,), {"dim": None}, -1),
        ("Functional", "max", (), {"axis": 1}, 1),
        ("Functional", "cummax", (1,), {}, 1),
        ("Tensor", "msort", (), {}, 0),
        ("Tensor", "argmax", (), {"axis": 1}, 1),
        ("Mint", "argmax", (None,), {}, None),
        ("Mint", "argmax", (-2, True), {}, -2),
        ("Torch", "linalg.max", (), {"dim": 0}, 0),
    ],
)
def test_axes_of_mindspore(api_type: str, api: str, arguments: Any, keywords: Any, axis: int | None) -> None:
    assert axis_of(api_type, api, *arguments, **keywords) == axis


@pytest.mark.parametrize(("api_type", "api"), [("Mint", "matmul"), ("Mint", "maximum"), ("Primitive", "max.Maximum")])
def test_other_apis_have_no_index_output(api_type: str, api: str) -> None:
    assert index_output(ApiName(api_type, api, 0)) is None


def test_a_primitive_named_like_an_index_api_hides_its_axis() -> None:
    assert index_output(ApiName("Primitive", "topk.topk", 0)) is None


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((), {}),
        ((3,), {}),
        (((SOURCE,),), {}),
        ((NumpyArgument(SOURCE),), {}),
        ((SOURCE, SOURCE), {}),  # max of two tensors: no axis there
        ((SOURCE, (0, 1)), {}),
        ((SOURCE, True), {}),
        ((SOURCE, "name"), {}),
        ((SOURCE, find_dtype("Int32")), {}),
        ((SOURCE,), {"dim": (0, 1)}),
        ((), {"x": SOURCE}),
    ],
)
def test_a_call_that_does_not_show_source_or_axis_is_not_judged_this_way(arguments: Any, keywords: Any) -> None:
    described = index_output(ApiName("Mint", "max", 0))
    assert described is not None
    assert source_and_axis(call("Mint", "max", arguments, keywords), described) is None


def test_the_source_may_be_given_by_name() -> None:
    described = index_output(ApiName("Mint", "topk", 0))
    assert described is not None
    found = source_and_axis(call("Mint", "topk", (), {"input": SOURCE, "k": 2, "dim": 0}), described)
    assert found is not None
    assert found[0] is SOURCE
    assert found[1] == 0


def test_a_pool_of_an_empty_batch_selects_from_nothing() -> None:
    described = index_output(ApiName("MintFunctional", "adaptive_max_pool2d", 0))
    assert described is not None
    empty = np.zeros((0, 3, 4, 5), np.float32)
    found = source_and_axis(call("MintFunctional", "adaptive_max_pool2d", (empty, 2), {}), described)
    assert found is not None
    assert found[0].shape == (0, 3, 20)
