"""Runs with many failures: what pytest prints and keeps of them."""

from __future__ import annotations

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.run.terminal import MOST_FAILURES

X = np.arange(4, dtype=np.float32)
CALLS = 30
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
    done = pytester.runpytest("--msprobe-dump=dump", "--msprobe-device=recorded", *workers)
    done.stdout.fnmatch_lines(["kept: 0 setups, 0 teardowns", f"*{CALLS} failed*"])


def test_a_teardown_that_printed_is_kept_and_shown(pytester: pytest.Pytester, wrong_dump: None) -> None:
    pytester.makeconftest(CONFTEST.format(loud=True))
    done = pytester.runpytest("--msprobe-dump=dump", "--msprobe-device=recorded")
    expected = ["*Captured stdout teardown*", "said in a teardown", f"kept: 0 setups, {CALLS} teardowns"]
    done.stdout.fnmatch_lines(expected)


def test_durations_see_all_of_them(pytester: pytest.Pytester, wrong_dump: None) -> None:
    pytester.makeconftest(CONFTEST.format(loud=False))
    done = pytester.runpytest("--msprobe-dump=dump", "--msprobe-device=recorded", "--durations=0", "-vv")
    done.stdout.fnmatch_lines([f"kept: {CALLS} setups, {CALLS} teardowns"])
    done.stdout.fnmatch_lines(["*s setup *Mint.exp.0*"])


def test_the_first_failures_are_printed_and_the_summary_is_last(pytester: pytest.Pytester, wrong_dump: None) -> None:
    done = pytester.runpytest("--msprobe-dump=dump", "--msprobe-device=recorded", "--junitxml=all.xml")
    lines = done.stdout.lines
    assert sum(line.startswith("FAILED ") for line in lines) == MOST_FAILURES
    assert sum(line.startswith("____") for line in lines) == MOST_FAILURES
    more = lines.index(f"and {CALLS - MOST_FAILURES} more failures; -v prints all of them")
    assert lines.index(next(line for line in lines if line.strip("=") == " msprobe precheck ")) == more + 1
    done.assert_outcomes(failed=CALLS)
    assert (pytester.path / "all.xml").read_text().count("<failure") == CALLS


def test_verbose_prints_all_failures(pytester: pytest.Pytester, wrong_dump: None) -> None:
    done = pytester.runpytest("--msprobe-dump=dump", "--msprobe-device=recorded", "-v")
    assert sum(line.startswith("FAILED ") for line in done.stdout.lines) == CALLS


def test_quiet_prints_counts_files_and_the_answer(pytester: pytest.Pytester, wrong_dump: None) -> None:
    done = pytester.runpytest("--msprobe-dump=dump", "--msprobe-device=recorded", "-q")
    lines = done.stdout.lines
    start = next(number for number, line in enumerate(lines) if line.strip("=") == " msprobe precheck ")
    end = lines.index("", start)
    assert [line.partition(" ")[0] for line in lines[start + 1 : end]] == [
        str(CALLS - CALLS),
        "failing",
        "results:",
        "details:",
    ]
    assert lines[end + 1].startswith("Wrong: ")
    assert len(lines[end + 1 : -1]) <= 12


def test_headlines_name_the_file_where_there_are_several(pytester: pytest.Pytester) -> None:
    for rank in range(2):
        DumpBuilder(pytester.path / f"dump/rank{rank}").call("Mint.exp.0", [X], [X]).write()
    done = pytester.runpytest("--msprobe-dump=dump", "--msprobe-device=recorded")
    done.stdout.fnmatch_lines(
        ["___* rank0: Mint.exp, call 0, forward ___*", "___* rank1: Mint.exp, call 0, forward ___*"]
    )
