"""Runs with many failures: pytest's summary must not look through every setup and teardown for each of them."""

from __future__ import annotations

import numpy as np
import pytest
from dump_builder import DumpBuilder

X = np.arange(4, dtype=np.float32)
CALLS = 10
CONFTEST = """
def pytest_runtest_teardown(item):
    if {loud}:
        print("said in a teardown")

def pytest_terminal_summary(terminalreporter):
    kept = [report.when for report in terminalreporter.stats.get("", [])]
    terminalreporter.write_line(f"kept: {{kept.count('setup')}} setups, {{kept.count('teardown')}} teardowns")
"""


@pytest.fixture
def wrong_dump(pytester: pytest.Pytester) -> None:
    """A dump whose recorded outputs are all wrong."""
    builder = DumpBuilder(pytester.path / "dump")
    for number in range(CALLS):
        builder.call(f"Mint.exp.{number}", [X], [X])
    builder.write()


@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_passed_setups_and_teardowns_are_let_go(
    pytester: pytest.Pytester, wrong_dump: None, workers: tuple[str, ...]
) -> None:
    pytester.makeconftest(CONFTEST.format(loud=False))
    done = pytester.runpytest_subprocess("--msprobe-dump=dump", "--msprobe-device=recorded", *workers)
    done.stdout.fnmatch_lines(["kept: 0 setups, 0 teardowns", f"*{CALLS} failed*"])


def test_a_teardown_that_printed_is_kept_and_shown(pytester: pytest.Pytester, wrong_dump: None) -> None:
    pytester.makeconftest(CONFTEST.format(loud=True))
    done = pytester.runpytest_subprocess("--msprobe-dump=dump", "--msprobe-device=recorded")
    expected = ["*Captured stdout teardown*", "said in a teardown", f"kept: 0 setups, {CALLS} teardowns"]
    done.stdout.fnmatch_lines(expected)


def test_durations_see_all_of_them(pytester: pytest.Pytester, wrong_dump: None) -> None:
    pytester.makeconftest(CONFTEST.format(loud=False))
    done = pytester.runpytest_subprocess("--msprobe-dump=dump", "--msprobe-device=recorded", "--durations=0", "-vv")
    done.stdout.fnmatch_lines([f"kept: {CALLS} setups, {CALLS} teardowns"])
    done.stdout.fnmatch_lines(["*s setup *Mint.exp.0*"])
