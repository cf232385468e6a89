"""A dump.json whose training was killed while it wrote: what is whole is checked, and the run is no success."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dump_builder import DumpBuilder

A = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_the_header_says_that_a_dump_was_cut_off(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path / "dump")
    for number in range(3):
        builder.call(f"Mint.neg.{number}", [A], [-A])
    builder.write()
    path = pytester.path / "dump" / "dump.json"
    content = json.loads(path.read_text())
    records = content.pop("data")
    head = json.dumps(content)[:-1] + ',\n"data": {\n'
    entries = ",\n".join(f"{json.dumps(name)}: {json.dumps(record)}" for name, record in records.items())
    path.write_text((head + entries)[:-20])
    result = pytester.runpytest("--msprobe-dump=dump")
    result.assert_outcomes(passed=2)
    said = "*dump.json was truncated while it was written: its first 2 records are read"
    result.stdout.fnmatch_lines(
        [f"msprobe: not whole: {said}", "not everything that was given could be judged, so this run *", f"  {said}"]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_whole_dump_has_no_such_line(pytester: pytest.Pytester) -> None:
    DumpBuilder(pytester.path / "dump").call("Mint.neg.0", [A], [-A]).write()
    result = pytester.runpytest("--msprobe-dump=dump")
    result.assert_outcomes(passed=1)
    assert "cut off" not in result.stdout.str()
