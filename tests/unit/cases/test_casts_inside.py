"""Calls that got operands of another dtype than their record shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import Dump
from pytest_msprobe.cases.call_run import CallRun


@pytest.mark.parametrize(
    ("name", "framework", "dtype"),
    [
        ("Functional.softmax.0", "mindspore", "float16"),  # by Cell.to_float
        ("Functional.softmax.0", "pytorch", "float32"),  # autocast widens, and never narrows, what it gets
        ("Functional.linear.0", "pytorch", "float16"),
    ],
)
def test_a_narrow_result_of_a_wide_operand(tmp_path: Path, name: str, framework: Any, dtype: str) -> None:
    builder = DumpBuilder(tmp_path, framework=framework)
    x = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
    builder.call(name, [x, x if "linear" in name else -1], [x.astype(np.float16)])
    case = CallRun(Dump(builder.write()), name, with_backward=False, max_memory_bytes=1 << 30).case
    assert str(case.call.arguments[0].dtype) == dtype  # type: ignore[union-attr]
    assert case.notes == (("mixed precision: computed in Float16",) if dtype == "float16" else ())
