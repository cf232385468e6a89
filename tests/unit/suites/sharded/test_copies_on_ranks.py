"""Copies, shards and terms of a sum are told apart in every dtype, by elements and by statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder
from ml_dtypes import bfloat16

from pytest_msprobe.suites.sharded.alone import StepLaws
from pytest_msprobe.suites.sharded.inference import alike
from pytest_msprobe.suites.sharded.ranks import RankDump, ShardedStep, dumps_below

RNG = np.random.default_rng(3)
FIRST, SECOND = RNG.standard_normal((2, 64, 32)).astype(np.float32)
#: Statistics of two values of 2**27 random numbers, each of which differs by less than copies may in float32, of the
#: norm.
LARGE = [
    {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1 << 27]}
    | dict(zip(("Max", "Min", "Mean", "Norm"), statistics))
    for statistics in ((5.61, -5.73, 2.1e-5, 11585.0), (5.84, -5.52, -2.3e-5, 11585.3))
]
#: Halves of a sum of exponentials, which differ by less than one rounding of bfloat16.
HALVES = 1000 + RNG.standard_normal((2, 64, 32)).astype(np.float32)
DTYPES = pytest.mark.parametrize("dtype", [bfloat16, np.float16, np.float32])


def kind(folder: Path, values: list[Any], *, real: bool) -> str:
    held = []
    for rank, value in enumerate(values):
        builder = DumpBuilder(folder / f"rank{rank}", framework="pytorch", real=real)
        dump = RankDump(builder.call("Torch.exp.0", [value], []).write())
        held.append((dump, dump.leaves("Torch.exp.0.forward")[0]))
    return alike(held)


@DTYPES
@pytest.mark.parametrize("real", [True, False], ids=["tensors", "statistics"])
def test_copies_are_equal(tmp_path: Path, dtype: Any, real: bool) -> None:
    assert kind(tmp_path, [FIRST.astype(dtype)] * 2, real=real) == "equal"
    assert kind(tmp_path, [np.ones((4, 3), dtype)] * 2, real=real) == "constant"


@DTYPES
def test_other_values_are_no_copies(tmp_path: Path, dtype: Any) -> None:
    pair = [FIRST.astype(dtype), SECOND.astype(dtype)]
    assert kind(tmp_path, pair, real=True) == "different"
    # No rounding explains it in float32; statistics of a half dtype tell neither.
    assert kind(tmp_path, pair, real=False) == ("different" if dtype is np.float32 else "unknown")


def test_statistics_of_large_values_are_alike_by_their_number_of_elements(tmp_path: Path) -> None:
    assert kind(tmp_path, LARGE, real=False) == "unknown"


@pytest.mark.parametrize("real", [True, False], ids=["tensors", "statistics"])
def test_terms_of_a_sum_within_the_rounding_of_a_half_dtype_are_no_copies(tmp_path: Path, real: bool) -> None:
    assert kind(tmp_path, list(HALVES.astype(bfloat16)), real=real) == "unknown"


@DTYPES
def test_terms_of_a_sum_are_not_blamed_and_copies_are(tmp_path: Path, dtype: Any) -> None:
    right = step(tmp_path / "right", [FIRST.astype(dtype), SECOND.astype(dtype)])
    assert right.spread.sharing(right.spread.rows[0]) == "model"
    assert right.first == {}
    wrong = step(tmp_path / "wrong", [FIRST.astype(dtype)] * 2)
    assert wrong.first == {"forward": (0, "Distributed.all_reduce.0.forward")}


def step(folder: Path, terms: list[np.ndarray[Any, Any]]) -> StepLaws:
    """Laws of a step of statistics, on two ranks that have other parts of a parameter and add up `terms`."""
    for rank, term in enumerate(terms):
        builder = DumpBuilder(folder / f"rank{rank}", framework="pytorch", real=False)
        builder.header["ranks"] = {
            "rank": rank,
            "world_size": 2,
            "groups": {"tp": {"group": "g", "rank_in_group": rank, "ranks": [0, 1]}},
        }
        builder.call("Distributed.all_reduce.0", [term], [terms[0] + terms[1]])
        parts = {"w": (FIRST, SECOND)[rank].astype(term.dtype), "scale": np.ones(3, term.dtype)}
        values = {f"parameters.{name}": builder.value(part, name) for name, part in parts.items()}
        builder.records["Optimizer.SGD.0.forward"] = {"input_args": [], "input_kwargs": values, "output": []}
        builder.write()
    return StepLaws(ShardedStep.read(folder, dumps_below(folder), ()))
