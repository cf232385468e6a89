"""A disk that is full at any moment: never a success with a row missing, and the run can be continued."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from gradient_runs import write_step

from pytest_msprobe.reports.jsonl import read_json_lines

A = np.arange(6, dtype=np.float32).reshape(2, 3)
CALLS = 12
#: Bytes that a file may grow to: from not even a heading to all but the last rows.
SIZES = [0, 1, 3, 10, 40, 70, 110, 170, 260, 400, 600, 900, 1400, 2100, 3200, 4800, 6000, 7200, 11000, 16000]
#: Options of each suite; of the files that each writes beside the machine rows, the lines when complete.
SUITES = {
    "precheck": (("--msprobe-dump=target/dump.json",), {"accuracy_checking_result_*.csv": CALLS + 1}),
    "comparison": (
        ("--msprobe-dump=target/dump.json", "--msprobe-golden=golden/dump.json"),
        {"compare_result_*.csv": CALLS * 4 + 1},
    ),
    "overflow": (("--msprobe-dump=target/dump.json", "--msprobe-suite=overflow"), {}),
    "gradients": (("--msprobe-gradients=a", "--msprobe-golden=b"), {"gradients_*/rank0/similarities.csv": 4}),
}


class FullDisk:
    """While a run lasts, what a write beyond `size` bytes meets is an OSError, as on a full disk."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, self._before[1]))

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


@pytest.fixture
def samples(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    for side in ("target", "golden"):
        builder = DumpBuilder(pytester.path / side)
        for number in range(CALLS):
            builder.call(f"Mint.neg.{number}", [A], [-A], incoming=[A], gradients=[-A])
        builder.write()
    for run in ("a", "b"):
        for step in range(CALLS // 2):
            write_step(pytester.path / run, step, {"w": np.ones(50), "v": -np.ones(50)})
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # pictures only cost time here
    return pytester.path


def rows_of(path: Path) -> list[tuple[str, str]]:
    return [(row.node_id, row.status) for _, row in read_json_lines(path)] if path.exists() else []


def is_complete(out: Path, files: dict[str, int]) -> bool:
    found = {pattern: [*out.glob(pattern)] for pattern in files}
    return all(
        len(paths) == 1 and len(paths[0].read_text(encoding="utf-8-sig").splitlines()) == files[pattern]
        for pattern, paths in found.items()
    )


@pytest.mark.parametrize("suite", SUITES)
def test_no_run_is_a_success_that_lacks_a_row(pytester: pytest.Pytester, samples: Path, suite: str) -> None:
    options, files = SUITES[suite]
    common = (*options, "--capture=sys", "-p", "no:cacheprovider", "-q", "--tb=short")
    pytester.runpytest_inprocess(*common, "--msprobe-out=whole", "--msprobe-jsonl=whole.jsonl").assert_outcomes(
        passed=len(everything := rows_of(samples / "whole.jsonl"))
    )
    assert is_complete(samples / "whole", files)
    codes = set()
    for size in SIZES:
        out, rows = samples / str(size), samples / f"{size}.jsonl"
        options = (f"--msprobe-out={out}", f"--msprobe-jsonl={rows}")
        result = pytester.runpytest_inprocess(*common, *options, plugins=[FullDisk(size)])
        text = result.stdout.str()
        assert "INTERNALERROR" not in text
        codes.add(result.ret)
        has_all = sorted(rows_of(rows)) == sorted(everything) and is_complete(out, files)
        if result.ret == pytest.ExitCode.OK:
            assert has_all, f"a success at {size} bytes that lacks rows"
        else:
            assert result.ret == pytest.ExitCode.TESTS_FAILED
            assert "File too large" in text, text
        if rows.exists():
            again = pytester.runpytest_inprocess(*common, f"--msprobe-out={out}/again", f"--msprobe-resume={rows}")
            assert again.ret == pytest.ExitCode.OK, again.stdout.str()
            assert sorted(rows_of(rows)) == sorted(everything)
    assert pytest.ExitCode.TESTS_FAILED in codes


def test_a_csv_pair_cut_short_anywhere_is_completed(pytester: pytest.Pytester, samples: Path) -> None:
    common = ("--msprobe-dump=target/dump.json", "--capture=sys", "-p", "no:cacheprovider", "-q")
    for size in SIZES:
        out = samples / str(size)
        result = pytester.runpytest_inprocess(*common, f"--msprobe-out={out}", plugins=[FullDisk(size)])
        found = [*out.glob("accuracy_checking_result_*.csv")]
        assert result.ret == (pytest.ExitCode.OK if is_complete(out, SUITES["precheck"][1]) else 1)
        if found:
            again = pytester.runpytest_inprocess(*common, f"--msprobe-out={out}", f"--msprobe-resume={found[0]}")
            assert again.ret == pytest.ExitCode.OK, again.stdout.str()
            assert is_complete(out, {**SUITES["precheck"][1], "accuracy_checking_details_*.csv": CALLS * 2 + 1})
