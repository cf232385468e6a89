"""Parameters that ranks hold in a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.suites.sharded.orders import Rows
from pytest_msprobe.suites.sharded.ranks import RankDump

RECORD = "Optimizer.SGD.0.forward"
FIRST, SECOND = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(10, 15, dtype=np.float32)


def step(folder: Path, values: dict[str, np.ndarray]) -> RankDump:
    """What an optimizer gets."""
    builder = DumpBuilder(folder)
    inputs = {path: builder.value(value, path) for path, value in values.items()}
    builder.records[RECORD] = {"input_args": [], "input_kwargs": inputs, "output": []}
    builder.write()
    return RankDump(folder / "dump.json")


def rows(folder: Path, row: np.ndarray) -> Rows:
    """Two parameters and their gradients, twice as large, of which two ranks have halves of a row."""
    logical = step(
        folder / "one",
        {"parameters.a": FIRST, "parameters.b": SECOND, "gradients.a": 2 * FIRST, "gradients.b": 2 * SECOND},
    )
    ranks = [
        step(folder / f"rank{number}", {"parameters.0": part, "gradients.0": 2 * part})
        for number, part in enumerate(np.split(row, 2))
    ]
    leaves, *held = ({one.path: one for one in dump.leaves(RECORD)} for dump in (logical, *ranks))
    return Rows(leaves, logical, list(zip(ranks, held)))


@pytest.mark.parametrize("order", [1, -1])
def test_values_are_where_the_parameters_before_the_step_tell(tmp_path: Path, order: int) -> None:
    row = np.concatenate([*[FIRST.ravel(), SECOND][::order], np.zeros(1, np.float32)])
    found = rows(tmp_path, row)
    for name, value in (("a", FIRST), ("b", SECOND)):
        assert np.array_equal(found.value(f"input.gradients.{name}"), 2 * value)


def test_a_row_of_something_else_is_none(tmp_path: Path) -> None:
    assert rows(tmp_path, np.ones(12, np.float32)).value("input.gradients.a") is None
