"""The verdict row crosses processes unchanged, in nothing but builtin types."""

from __future__ import annotations

import json
import math
from typing import Any

import execnet
import pytest

from pytest_msprobe.verdicts import OutputRow, VerdictRow

FIGURES = {"cosine": 0.5, "max_abs": 1e-5, "max_rel": None, "max_ulp": 2.0}
OUTPUT = OutputRow("output.0", "Float64", "Float32", (2, 3), "pass", figures=FIGURES)
ROWS = [
    VerdictRow("d::c::forward", "d", "Mint.add.0", "forward", ("forward",), ("forward",), "skip", "skipped", "why"),
    VerdictRow("d::c::x", "d", "strange", "record", (), (), "error", "xfailed"),
    VerdictRow(
        "d::c::backward",
        "d/é.json",
        "Mint.add.0",
        "backward",
        ("forward", "backward"),
        ("backward",),
        "error",
        "failed",
        'two\nlines, and "quotes"',
        "recorded values",
        "torch CPU float64",
        (
            OUTPUT,
            OutputRow("output.1", "int", "bool", (), "error", "x", "ulp", {"max_abs": math.inf, "max_rel": -math.inf}),
        ),
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
    output = OutputRow("output.0", "Float64", "Float32", (2**48, 1), "error", figures={"cosine": math.nan})
    row = VerdictRow("n", "d", "c", "forward", (), (), "error", "failed", outputs=(output,))
    found = VerdictRow.from_wire(execnet.loads(execnet.dumps(row.to_wire()))).outputs[0]
    assert found.cosine is not None
    assert math.isnan(found.cosine)
    assert found.shape == (2**48, 1)


@pytest.mark.parametrize(("key", "value"), [("status", "warning"), ("outcome", "rerun"), ("call", 3)])
def test_another_vocabulary_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        VerdictRow.from_wire({**ROWS[0].to_wire(), key: value})
