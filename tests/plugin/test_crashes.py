"""Real workers that really die, and devices assigned to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from socket import gethostname
from xml.etree import ElementTree

import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports
from slow_parameters import WORKERS

from pytest_msprobe.reports.jsonl import read_json_lines

A = np.arange(6, dtype=np.float32).reshape(2, 3)


def dump_of(folder: Path, calls: int) -> None:
    builder = DumpBuilder(folder)
    for number in range(calls):
        builder.call(f"Mint.neg.{number}", [A], [-A], incoming=[A], gradients=[-A])
    builder.write()


def die_in(pytester: pytest.Pytester, *parts: str, how: str = "os.abort()") -> None:
    pytester.makeconftest(
        f"import os, signal\n"
        f"def pytest_runtest_call(item):\n"
        f"    if any(part in item.nodeid for part in {parts!r}): {how}\n"
    )


@pytest.mark.slow
def test_an_abort_costs_one_item_and_is_in_every_report(pytester: pytest.Pytester, reports: Reports) -> None:
    dump_of(pytester.path, 25)
    die_in(pytester, "Mint.neg.7::backward")
    result = pytester.runpytest_subprocess(
        "--msprobe-dump=dump.json",
        *("-n", "2", "--junitxml=r.xml", "--html=r.html", "--self-contained-html"),
        *("--msprobe-jsonl=r.jsonl", "--msprobe-seed=3"),
    )
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"]) == (49, 1)
    assert len(reports.results) == 25
    row = reports.results["Mint.neg.7"]
    assert (row["Forward Test Success"], row["Backward Test Success"]) == ("pass", "error")
    assert "died in this check, by SIGABRT" in row["Message"]
    assert 'failures="1"' in (pytester.path / "r.xml").read_text()
    (case,) = [case for case in ElementTree.parse(pytester.path / "r.xml").iter("testcase") if len(case) == 2]
    facts = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
    dump = str(pytester.path / "dump.json")
    assert facts == {"api": "Mint.neg.7", "direction": "backward", "dump": dump, "verdict": "error"}
    (lost,) = [row for _, row in read_json_lines(pytester.path / "r.jsonl") if row.status == "error"]
    assert (lost.node_id, lost.seed, lost.host) == ("dump.json::Mint.neg.7::backward", 3, gethostname())
    assert "1 Failed" in (pytester.path / "r.html").read_text()
    again = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "2", "--lf", "--msprobe-out=again")
    assert again.parseoutcomes()["failed"] == 1


@pytest.mark.slow
def test_more_deaths_than_xdist_would_bear(pytester: pytest.Pytester, reports: Reports) -> None:
    dump_of(pytester.path, 12)
    die_in(pytester, *(f"Mint.neg.{number}::forward" for number in range(0, 12, 2)), how="os._exit(3)")
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "1")
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"]) == (18, 6)
    assert len(reports.results) == 12
    assert "with exit code 3" in reports.results["Mint.neg.0"]["Message"]


@pytest.mark.slow
def test_every_worker_has_a_device_of_its_own_also_after_a_death(
    pytester: pytest.Pytester, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "fakes" / "npu"))
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4,5,7")
    dump_of(pytester.path, 8)
    die_in(pytester, "Mint.neg.3::forward")
    options = ("-n", "2", "--msprobe-device=torch:npu", "--msprobe-device-ids=5,7")
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", *options)
    result.stdout.fnmatch_lines(["msprobe: devices of the workers: gw0: 5, gw1: 7"])
    message = reports.results["Mint.neg.3"]["Message"]
    assert "on device 5 died" in message or "on device 7 died" in message
    assert result.parseoutcomes()["passed"] == 15


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["-n", "3", "--msprobe-device-ids=0,1", "--msprobe-suite=repeat"],
            "use at most -n 2, or let K workers share a device",
        ),
        (["-n", "2", "--dist", "loadfile"], "--dist loadfile: a crashing API call would take the rest"),
        (["-n", "2", "--dist", "each"], "--dist each: every worker would judge every record"),
        (["-n", "2", "--msprobe-device-ids=x"], "'x' is not a list of device ids"),
        (["-n", "2", "--msprobe-workers-per-device=0"], "'0' is not a whole number of 1 or more"),
    ],
)
def test_workers_that_do_not_fit_are_a_usage_error(
    pytester: pytest.Pytester, options: list[str], sentence: str
) -> None:
    dump_of(pytester.path, 1)
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.stderr.str()


@pytest.mark.slow
def test_workers_may_share_a_device_when_asked(pytester: pytest.Pytester) -> None:
    dump_of(pytester.path, 2)
    options = ("-n", "2", "--msprobe-device-ids=4", "--msprobe-workers-per-device=2", "--msprobe-suite=repeat")
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", *options)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["msprobe: devices of the workers: gw0: 4, gw1: 4"])


@pytest.mark.slow
def test_a_check_that_hangs_without_giving_back_the_gil_is_ended(pytester: pytest.Pytester, reports: Reports) -> None:
    dump_of(pytester.path, 4)
    # A C function called through PyDLL keeps the GIL, as a hanging kernel may.
    pytester.makeconftest(
        "import ctypes, os, torch\n"
        "original = torch.neg\n"
        "def hang(*given):\n"
        "    if os.environ['PYTEST_XDIST_WORKER'] == 'gw0': ctypes.PyDLL(None).sleep(3600)\n"
        "    return original(*given)\n"
        "torch.neg = hang\n"
    )
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "1", "--msprobe-timeout=1.5")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (lost,) = [row for row in reports.results.values() if row["Forward Test Success"] == "error"]
    assert "did not end within 1.5 s (--msprobe-timeout)" in lost["Message"]
    assert lost["Backward Test Success"] == "pass"
    assert len(reports.results) == 4


SLOW_IMPORT = """
import sys, time
class Slow:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            time.sleep(9)
sys.meta_path.insert(0, Slow)
"""


@pytest.mark.slow
def test_the_import_of_a_framework_is_not_counted(pytester: pytest.Pytester) -> None:
    dump_of(pytester.path, 2)
    pytester.makeconftest(SLOW_IMPORT)
    options = ("--msprobe-dump=dump.json", "-n", "1", "--msprobe-timeout=6", "--msprobe-bench=torch")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=4)


@pytest.mark.slow
def test_the_start_of_a_child_process_is_not_counted(pytester: pytest.Pytester) -> None:
    dump_of(pytester.path, 2)
    python = pytester.path / "slow_python"
    python.write_text(f'#!/bin/sh\nsleep 9\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    options = ("--msprobe-dump=dump.json", "-n", "1", "--msprobe-timeout=6", "--msprobe-bench=torch")
    result = pytester.runpytest_subprocess(*options, f"--msprobe-bench-python={python}")
    result.assert_outcomes(passed=4)


def test_a_worker_that_cannot_start_ends_the_run_with_its_last_words(pytester: pytest.Pytester) -> None:
    dump_of(pytester.path, 1)
    pytester.makeconftest(
        "import os, pytest\n"
        "def pytest_configure(config):\n"
        "    if hasattr(config, 'workerinput'):\n"
        "        if os.path.exists('quietly'): os._exit(7)\n"
        "        raise pytest.UsageError('no room')\n"
    )
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: the worker gw0 could not start: no room" in result.stderr.str()
    (pytester.path / "quietly").touch()
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "1")
    assert "ERROR: the worker gw0 could not start: Not properly terminated" in result.stderr.str()


@pytest.mark.slow
@WORKERS
def test_failures_before_ctrl_c_are_remembered_for_last_failed(pytester: pytest.Pytester, workers: str) -> None:
    builder = DumpBuilder(pytester.path)
    for number in range(8):
        builder.call(f"Mint.neg.{number}", [A], [A if number in (0, 1) else -A])
    builder.write()
    pytester.makeconftest(
        "import os, time\n"
        "def pytest_runtest_call(item):\n"
        "    if 'neg.5' in item.nodeid and os.path.exists('hang'):\n"
        "        open('hanging', 'w').close()\n"
        "        time.sleep(60)\n"
    )
    (pytester.path / "hang").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "--msprobe-dump=dump.json", "-n", workers],
        stdout=subprocess.PIPE,
        start_new_session=True,
        # A job in the background of a script ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (pytester.path / "hanging").exists() or not {"Mint.neg.0", "Mint.neg.1"} <= calls_so_far(pytester.path):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all of them
    output = process.communicate()[0].decode()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    (pytester.path / "hang").unlink()
    again = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", workers, "--lf", "--msprobe-out=again")
    again.assert_outcomes(failed=2, deselected=0 if workers == "2" else 6)
    assert Reports(pytester.path / "again").results.keys() == {"Mint.neg.0", "Mint.neg.1"}


def calls_so_far(folder: Path) -> set[str]:
    files = folder.glob("accuracy_checking_result_*.csv")
    return {line.partition(",")[0] for path in files for line in path.read_text().splitlines()}


#: Ends the process that dies in a check, and so many of those that start in its place: as Python starts, or pytest.
DYING_STARTS = """
import os, signal
from pathlib import Path

LEFT = Path(__file__).with_name("left")

def end_if_asked():
    left = int(LEFT.read_text()) if LEFT.exists() else 0
    if left > 0:
        LEFT.write_text(str(left - 1))
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["Python", "pytest"])
@pytest.mark.parametrize("deaths", [1, 9])
def test_a_worker_that_dies_while_it_starts_is_started_again(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, moment: str, deaths: int
) -> None:
    DumpBuilder(pytester.path, real=False).call("Mint.neg.0", [A], [-A]).call("Mint.neg.1", [A], [-A]).write()
    (pytester.mkdir("start") / "dying.py").write_text(DYING_STARTS)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path / "start"), prepend=os.pathsep)
    if moment == "Python":
        (pytester.path / "start" / "sitecustomize.py").write_text("import dying; dying.end_if_asked()")
    pytester.makeconftest(
        "import dying, os\n"
        "def pytest_configure(config):\n"
        f"    if {moment == 'pytest'} and hasattr(config, 'workerinput'): dying.end_if_asked()\n"
        "def pytest_runtest_call(item):\n"
        "    if 'neg.1' in item.nodeid and not dying.LEFT.exists():\n"
        f"        dying.LEFT.write_text('{deaths}')\n"
        "        os._exit(3)\n"
    )
    arguments = ("--msprobe-dump=dump.json", "--msprobe-suite=overflow", "-n", "1", "--msprobe-jsonl=rows.jsonl")
    result = pytester.runpytest_subprocess(*arguments)
    assert "INTERNALERROR" not in result.stdout.str()
    if deaths == 1:
        result.assert_outcomes(passed=2, failed=1)
        return
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *"])
    (pytester.path / "start" / "left").write_text("0")
    again = pytester.runpytest_subprocess(*arguments[:-1], "--msprobe-resume=rows.jsonl")
    again.stdout.fnmatch_lines(["3 passed, 0 failed, 0 skipped*"])


@pytest.mark.parametrize("named", ["dump", "out"])
def test_a_path_that_is_no_utf_8_is_refused_beside_workers(pytester: pytest.Pytester, named: str) -> None:
    folder = os.fsdecode(os.fsencode(pytester.path) + b"/\xff")
    os.mkdir(folder)
    dump = DumpBuilder(Path(folder) if named == "dump" else pytester.path, real=False)
    dump.call("Mint.neg.0", [A], [-A]).write()
    arguments = (f"--msprobe-dump={dump.path}", "--msprobe-suite=overflow", f"--msprobe-{named}={folder}")
    refused = subprocess.run(
        [sys.executable, "-m", "pytest", "-n1", *arguments], capture_output=True, text=True, check=False
    )
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "is not UTF-8, which workers cannot be told; rename it, or leave out -n" in refused.stderr
    assert pytester.runpytest(*arguments).ret == 0
