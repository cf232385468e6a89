"""The verdict row crosses processes unchanged, in nothing but builtin types."""

from __future__ import annotations

import json
import math
from typing import Any

import execnet
import pytest

from pytest_msprobe.reports.row import OutputRow, VerdictRow

OUTPUT = OutputRow("output.0", "Float64", "Float32", (2, 3), 0.5, 1e-5, None, 2.0, "pass", "")
ROWS = [
    VerdictRow("d::c::forward", "d", "Mint.add.0", "forward", ("forward",), ("forward",), "skip", "why"),
    VerdictRow("d::c::x", "d", "strange", None, (), (), "error"),
    VerdictRow(
        "d::c::backward",
        "d/é.json",
        "Mint.add.0",
        "backward",
        ("forward", "backward"),
        ("backward",),
        "error",
        'two\nlines, and "quotes"',
        "recorded values",
        "torch CPU float64",
        (OUTPUT, OutputRow("output.1", "int", "bool", (), None, math.inf, -math.inf, None, "error", "x")),
        1.25,
    ),
]


def only_builtins(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and only_builtins(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value) in (list, tuple) and all(map(only_builtins, value))
    return value is None or type(value) in (str, int, float, bool)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.call)
def test_a_row_comes_back_from_the_wire(row: VerdictRow) -> None:
    wire = row.to_wire()
    assert only_builtins(wire)
    assert VerdictRow.from_wire(wire) == row
    assert VerdictRow.from_wire(execnet.loads(execnet.dumps(wire))) == row  # what pytest-xdist does with it
    assert VerdictRow.from_wire(json.loads(json.dumps(wire))) == row


def test_nan_stays_nan_and_large_shapes_stay_exact() -> None:
    output = OutputRow("output.0", "Float64", "Float32", (2**48, 1), math.nan, math.nan, None, None, "error", "")
    row = VerdictRow("n", "d", "c", "forward", (), (), "error", outputs=(output,))
    found = VerdictRow.from_wire(execnet.loads(execnet.dumps(row.to_wire()))).outputs[0]
    assert found.cosine is not None
    assert math.isnan(found.cosine)
    assert found.shape == (2**48, 1)


@pytest.mark.parametrize(("key", "value"), [("status", "warning"), ("direction", "sideways"), ("call", 3)])
def test_another_vocabulary_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        VerdictRow.from_wire({**ROWS[0].to_wire(), key: value})
