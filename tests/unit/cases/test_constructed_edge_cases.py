"""Edge cases made from one recorded call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import ApiName, Dump
from pytest_msprobe.cases import edge_cases
from pytest_msprobe.cases.case import Case, read_case
from pytest_msprobe.cases.edge_cases import (
    EDGE_CASES,
    WITH_GRADIENTS,
    constructed_incoming,
    edge_case,
    edge_cases_of,
    refuse_lack_of_memory,
)
from pytest_msprobe.cases.inputs import InputSource
from pytest_msprobe.engines.protocol import NotJudged, Output

NO_LIMIT = 1 << 60
X = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
Y = X + 20


def recorded(folder: Path, *arguments: Any) -> Case:
    builder = DumpBuilder(folder).call("Mint.mul.0", list(arguments), [X], incoming=[X], gradients=[X])
    dump = Dump(builder.write())
    source = InputSource(str(dump.path), dump.tensors, 0)
    return read_case(dump, "Mint.mul.0", source, with_backward=True, max_memory_bytes=NO_LIMIT)


def made(folder: Path, name: str, *arguments: Any) -> list[Any]:
    return list(edge_case(recorded(folder, *arguments), name, NO_LIMIT).call.arguments)


def test_shapes(tmp_path: Path) -> None:
    shapes = {
        name: [array.shape for array in made(tmp_path / name, name, X, Y)] for name in EDGE_CASES if name != "large"
    }
    assert shapes == {
        "empty": [(0, 3), (0, 3)],
        "scalar": [(), ()],
        "broadcast": [(4, 3), (1, 3)],
        **{key: [(4, 3), (4, 3)] for key in ("strided", "extreme", "nan", "inf")},
    }


def test_a_matrix_product_keeps_its_inner_length(tmp_path: Path) -> None:
    assert [array.shape for array in made(tmp_path, "empty", X, X.T.copy())] == [(0, 3), (3, 4)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_extreme_values_of_the_dtype(tmp_path: Path, dtype: type) -> None:
    wide = made(tmp_path, "extreme", X.astype(dtype))[0].astype(np.float64)
    limits = ml_dtypes.finfo(dtype)
    for value in (limits.max, limits.min, limits.smallest_normal, limits.smallest_subnormal):
        assert (wide == float(value)).sum() == 1
    assert np.signbit(wide[wide == 0]).sum() == 1
    assert (wide == X).sum() == X.size - 7


def test_special_values_stand_far_apart(tmp_path: Path) -> None:
    (with_nan,) = made(tmp_path / "a", "nan", X)
    assert np.flatnonzero(np.isnan(with_nan)).tolist() == [0, 4, 8]
    (with_inf,) = made(tmp_path / "b", "inf", X)
    assert with_inf.reshape(-1)[[0, 4, 8]].tolist() == [np.inf, -np.inf, np.inf]
    (one,) = made(tmp_path / "c", "nan", np.float32([2]))
    assert np.isnan(one).tolist() == [True]


def test_integers_keep_their_values(tmp_path: Path) -> None:
    index = np.arange(4)
    assert (made(tmp_path, "extreme", X, index)[1] == index).all()


def test_recorded_arrays_stay_and_the_case_says_what_it_is(tmp_path: Path) -> None:
    case = recorded(tmp_path, X, Y)
    before = case.call.arguments[0].copy()  # type: ignore[union-attr]
    found = edge_case(case, "nan", NO_LIMIT)
    assert (case.call.arguments[0] == before).all()  # type: ignore[union-attr]
    assert (found.constructed, found.wanted, found.backward) == ("nan", (), None)
    assert found.notes[-1] == f"constructed: {EDGE_CASES['nan']}"
    assert edge_case(case, "strided", NO_LIMIT).call.is_strided


@pytest.mark.parametrize("name", [name for name in EDGE_CASES if name != "large"])
def test_gradients_are_wanted_where_the_recorded_call_has_them(tmp_path: Path, name: str) -> None:
    case = recorded(tmp_path, X, Y)
    found = edge_case(case, name, NO_LIMIT)
    assert case.wanted
    assert found.wanted == (case.wanted if name in WITH_GRADIENTS else ())


def test_incoming_gradients_fit_the_outputs_and_are_the_same_in_every_run(tmp_path: Path) -> None:
    case = edge_case(recorded(tmp_path, X, Y), "strided", NO_LIMIT)
    values = (X, np.arange(3), 2.5, X.astype(ml_dtypes.bfloat16)[:2])
    outputs = [Output((index,), value) for index, value in enumerate(values)]
    first, again = (constructed_incoming(case, outputs, 7) for _ in range(2))
    kinds = [None if gradient is None else (gradient.shape, gradient.dtype) for gradient in first]
    assert kinds == [((4, 3), np.float32), None, ((2, 3), ml_dtypes.bfloat16)]
    assert all(one is other is None or (one == other).all() for one, other in zip(first, again))  # type: ignore[union-attr]
    assert (first[0] != constructed_incoming(case, outputs, 8)[0]).any()  # type: ignore[union-attr]
    with pytest.raises(NotJudged, match="carries a gradient"):
        constructed_incoming(case, outputs[1:3], 7)


def test_large_tensors_when_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_cases, "_LARGE", 100)
    found = edge_case(recorded(tmp_path, X, np.ones(1, np.float32)), "large", NO_LIMIT).call.arguments
    assert found[0].shape == (36, 3)  # type: ignore[union-attr]
    assert (found[0][4:8] == X).all()  # type: ignore[index,union-attr]
    with pytest.raises(NotJudged, match=r"2\^31 elements need up to .*--msprobe-max-memory"):
        edge_case(recorded(tmp_path / "b", X), "large", 100)


def test_large_integers_take_no_float64(tmp_path: Path) -> None:
    x = np.ones((4, 4), np.int8)
    builder = DumpBuilder(tmp_path).call("Mint.neg.0", [x], [-x])
    dump = Dump(builder.write())
    case = read_case(
        dump, "Mint.neg.0", InputSource("", dump.tensors, 0), with_backward=False, max_memory_bytes=NO_LIMIT
    )
    with pytest.raises(NotJudged, match=r"need up to 10\.7GB"):
        edge_case(case, "large", 10 * 10**9)


@pytest.mark.parametrize("text", ["MemoryError: Unable to allocate 16 GiB", "RuntimeError: CUDA out of memory."])
def test_memory_that_other_processes_hold_is_no_fault_of_the_device(tmp_path: Path, text: str) -> None:
    case = recorded(tmp_path, X, Y)
    refuse_lack_of_memory(edge_case(case, "nan", NO_LIMIT), text)
    refuse_lack_of_memory(replace(case, constructed="large"), "ValueError: shape")
    with pytest.raises(NotJudged, match="not enough memory for more than"):
        refuse_lack_of_memory(replace(case, constructed="large"), text)


def test_only_applicable_cases_are_made(tmp_path: Path) -> None:
    assert edge_cases_of(recorded(tmp_path / "a", X, Y).forward) == tuple(EDGE_CASES)
    assert edge_cases_of(recorded(tmp_path / "b", np.arange(3)).forward) == ("empty", "scalar", "large")
    assert edge_cases_of(recorded(tmp_path / "c", 3.0).forward) == ()
    assert "broadcast" not in edge_cases_of(recorded(tmp_path / "d", X, X[:1]).forward)


@pytest.mark.parametrize("api", ["view", "view_as"])
def test_views_are_not_asked_for_what_cannot_be_one(tmp_path: Path, api: str) -> None:
    case = recorded(tmp_path, X)
    with pytest.raises(NotJudged, match="not contiguous"):
        edge_case(replace(case, api=ApiName("Tensor", api, 0)), "strided", NO_LIMIT)
