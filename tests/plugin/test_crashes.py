"""Real workers that really die, and devices dealt to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

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


def test_an_abort_costs_one_item_and_is_in_every_report(pytester: pytest.Pytester, reports: Reports) -> None:
    dump_of(pytester.path, 25)
    die_in(pytester, "Mint.neg.7::backward")
    result = pytester.runpytest_subprocess(
        "--msprobe-dump=dump.json", "-n", "2", "--junitxml=r.xml", "--html=r.html", "--self-contained-html"
    )
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"]) == (49, 1)
    assert len(reports.results) == 25
    row = reports.results["Mint.neg.7"]
    assert (row["Forward Test Success"], row["Backward Test Success"]) == ("pass", "error")
    assert "died in this check, by SIGABRT" in row["Message"]
    assert 'failures="1"' in (pytester.path / "r.xml").read_text()
    assert "1 Failed" in (pytester.path / "r.html").read_text()
    again = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "2", "--lf", "--msprobe-out=again")
    assert again.parseoutcomes()["failed"] == 1


def test_more_deaths_than_xdist_would_bear(pytester: pytest.Pytester, reports: Reports) -> None:
    dump_of(pytester.path, 12)
    die_in(pytester, *(f"Mint.neg.{number}::forward" for number in range(0, 12, 2)), how="os._exit(3)")
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "1")
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"]) == (18, 6)
    assert len(reports.results) == 12
    assert "with exit code 3" in reports.results["Mint.neg.0"]["Message"]


def test_every_worker_has_a_device_of_its_own_also_after_a_death(pytester: pytest.Pytester, reports: Reports) -> None:
    dump_of(pytester.path, 8)
    die_in(pytester, "Mint.neg.3::forward")
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "2", "--msprobe-devices=5,7")
    result.stdout.fnmatch_lines(["msprobe: devices of the workers: gw0: 5, gw1: 7"])
    message = reports.results["Mint.neg.3"]["Message"]
    assert "on device 5 died" in message or "on device 7 died" in message
    assert result.parseoutcomes()["passed"] == 15


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["-n", "3", "--msprobe-devices=0,1"], "use at most -n 2, or let K workers share a device"),
        (["-n", "2", "--dist", "loadfile"], "--dist loadfile: a crashing API call would take the rest"),
        (["-n", "2", "--msprobe-devices=x"], "'x' is no list of device ids"),
        (["-n", "2", "--msprobe-workers-per-device=0"], "'0' is no whole number from 1 on"),
    ],
)
def test_workers_that_do_not_fit_are_a_usage_error(
    pytester: pytest.Pytester, options: list[str], sentence: str
) -> None:
    dump_of(pytester.path, 1)
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.stderr.str()


def test_workers_may_share_a_device_when_asked(pytester: pytest.Pytester) -> None:
    dump_of(pytester.path, 2)
    options = ("-n", "2", "--msprobe-devices=4", "--msprobe-workers-per-device=2")
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", *options)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["msprobe: devices of the workers: gw0: 4, gw1: 4"])


def test_a_check_that_hangs_without_giving_back_the_gil_is_ended(pytester: pytest.Pytester, reports: Reports) -> None:
    dump_of(pytester.path, 4)
    # A C function called through PyDLL keeps the GIL, as a hanging kernel may.
    pytester.makeconftest(
        "import ctypes, os, torch\n"
        "original = torch.neg\n"
        "def hang(*given):\n"
        "    if os.environ['PYTEST_XDIST_WORKER'] == 'gw0': ctypes.PyDLL(None).sleep(60)\n"
        "    return original(*given)\n"
        "torch.neg = hang\n"
    )
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "1", "--msprobe-timeout=1.5")
    assert result.duration < 50
    (lost,) = [row for row in reports.results.values() if row["Forward Test Success"] == "error"]
    assert "did not end within 1.5 s (--msprobe-timeout)" in lost["Message"]
    assert lost["Backward Test Success"] == "pass"
    assert len(reports.results) == 4
