"""A disk that is full at any moment: never a success with a row missing, and the run can be continued."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
#: File systems of 1 to 20 pages, and so on: every fifth of these, or as many as MSPROBE_TEST_SIZES says.
PAGES = range(1, 21)[:: max(1, 20 // int(os.environ.get("MSPROBE_TEST_SIZES", "4")))]
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
COMMON = ("--capture=sys", "-p", "no:cacheprovider", "-q", "--tb=short")


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


class Disk:
    """A file system of its own at `folder`, which may be small or become read-only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._layers = 0

    def mount(self, kilobytes: int) -> bool:
        """Begin with an empty one of that size; False where this process may not."""
        return self._mount("-t", "tmpfs", "-o", f"size={kilobytes}k,mode=0700", "none")

    def forbid_writing(self) -> None:
        """Let no file be made or opened for writing from here on; files that are open stay so."""
        assert self._mount("--bind", str(self.folder))
        assert self._run("mount", "-o", "remount,bind,ro", str(self.folder))

    def unmount(self) -> None:
        while self._layers:
            assert self._run("umount", "-l", str(self.folder))
            self._layers -= 1

    def _mount(self, *arguments: str) -> bool:
        done = self._run("mount", *arguments, str(self.folder))
        self._layers += done
        return done

    def _run(self, *command: str) -> bool:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    found = Disk(tmp_path_factory.mktemp("disk"))
    if not found.mount(4):
        pytest.skip("this process may not mount file systems")
    found.unmount()
    yield found
    found.unmount()


class ReadOnlyAfter:
    """Makes the disk read-only once so many records are judged."""

    def __init__(self, disk: Disk, records: int) -> None:
        self._disk, self._left = disk, records

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            if not self._left:
                self._disk.forbid_writing()
            self._left -= 1


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


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_no_run_is_a_success_that_lacks_a_row(pytester: pytest.Pytester, samples: Path, suite: str) -> None:
    options, files = SUITES[suite]
    common = (*options, *COMMON)
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


@pytest.mark.slow
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


def whole(pytester: pytest.Pytester, suite: str) -> tuple[tuple[str, ...], dict[str, int], list[tuple[str, str]]]:
    """Options and files of `suite`, and the rows of a run that nothing disturbs."""
    options, files = SUITES[suite]
    pytester.runpytest_inprocess(*options, *COMMON, "--msprobe-out=whole", "--msprobe-jsonl=whole.jsonl")
    return (*options, *COMMON), files, sorted(rows_of(pytester.path / "whole.jsonl"))


def check(result: pytest.RunResult, where: str, *, is_whole: bool, errors: tuple[str, ...]) -> None:
    text = result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in text
    assert "Traceback" not in text
    if result.ret == pytest.ExitCode.OK:
        assert is_whole, f"a success {where} that lacks rows"
    else:
        assert result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.USAGE_ERROR), text
        assert any(error in text for error in errors), text


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_no_run_on_a_small_file_system_is_a_success_that_lacks_a_row(
    pytester: pytest.Pytester, samples: Path, disk: Disk, suite: str
) -> None:
    options, files, everything = whole(pytester, suite)
    codes = []
    for pages in (*PAGES, 40):
        assert disk.mount(4 * pages)
        out, rows = disk.folder / "out", disk.folder / "rows.jsonl"
        result = pytester.runpytest_inprocess(*options, f"--msprobe-out={out}", f"--msprobe-jsonl={rows}")
        is_whole = sorted(rows_of(rows)) == everything and is_complete(out, files)
        check(result, f"on {4 * pages} KiB", is_whole=is_whole, errors=("No space left on device",))
        codes.append(result.ret)
        disk.unmount()
    assert codes[0] != pytest.ExitCode.OK
    assert codes[-1] == pytest.ExitCode.OK


@pytest.mark.parametrize("suite", SUITES)
def test_a_full_folder_for_temporary_files_costs_no_row(
    pytester: pytest.Pytester, samples: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, suite: str
) -> None:
    options, files, everything = whole(pytester, suite)
    monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
    for number in PAGES:
        assert disk.mount(4 * number)
        (disk.folder / "others").write_bytes(bytes(4096 * (number - number % 2)))
        out, rows = samples / f"{number}", samples / f"{number}.jsonl"
        result = pytester.runpytest_inprocess(*options, f"--msprobe-out={out}", f"--msprobe-jsonl={rows}")
        is_whole = sorted(rows_of(rows)) == everything and is_complete(out, files)
        check(result, f"with {number % 2} pages left", is_whole=is_whole, errors=("No space left on device",))
        disk.unmount()


@pytest.mark.parametrize("suite", SUITES)
def test_a_folder_that_becomes_read_only_is_no_success_that_lacks_a_row(
    pytester: pytest.Pytester, samples: Path, disk: Disk, suite: str
) -> None:
    options, files, everything = whole(pytester, suite)
    for records in (0, *PAGES):
        assert disk.mount(1000)
        out, rows = disk.folder / "out", disk.folder / "rows.jsonl"
        if not records:  # from the start
            disk.forbid_writing()
        result = pytester.runpytest_inprocess(
            *options, f"--msprobe-out={out}", f"--msprobe-jsonl={rows}", plugins=[ReadOnlyAfter(disk, records)]
        )
        is_whole = sorted(rows_of(rows)) == everything and is_complete(out, files)
        check(
            result, f"after {records} records", is_whole=is_whole, errors=("Read-only file system", "cannot be written")
        )
        disk.unmount()
