"""Beside the plugins that projects have: the same rows and the same counts as without them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

A = np.arange(6, dtype=np.float32).reshape(2, 3)
#: By the modules that tell whether they are installed: names of the plugins, and options that make them work.
PLUGINS = {
    "pytest_rerunfailures": ("--reruns=2",),
    "pytest_randomly": (),
    "pytest_timeout": ("--timeout=300",),
    "pytest_cov": ("--cov=here", "--cov-report="),
    "pytest_reportlog": ("--report-log=log.jsonl",),
    "pytest_jsonreport": ("--json-report", "--json-report-file=report.json"),
    "allure_pytest": ("--alluredir=allure",),
}
FOUND = [name for name in PLUGINS if importlib.util.find_spec(name)]
EVERY_ONE = [name for name in PLUGINS if name != "pytest_cov"]


def dump_of_each_verdict(folder: Path) -> None:
    builder = DumpBuilder(folder)
    for number in range(7):
        builder.call(f"Mint.neg.{number}", [A], [-A if number % 3 else A], incoming=[A], gradients=[-A])
    builder.call("Functional.gamma.0", [[4, 8], A, A], [A])
    builder.write()


def run(pytester: pytest.Pytester, out: str, *options: str) -> dict[str, int]:
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", f"--msprobe-out={out}", "-p", "xdist", *options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, result.stdout.str()
    result.stdout.fnmatch_lines(["11 passed, 3 failed, 1 skipped (API calls by direction)"])
    return {word: result.parseoutcomes().get(word, 0) for word in ("passed", "failed", "skipped", "rerun")}


@pytest.mark.skipif(not set(EVERY_ONE) <= set(FOUND), reason="needs the extra test-plugins")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_rows_and_counts_are_those_of_a_run_without_them(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")  # pytest-cov takes part
    dump_of_each_verdict(pytester.path)
    alone = run(pytester, "alone", "-n", workers, *(f"-p no:{name}" for name in ("randomly", "rerunfailures")))
    options = [option for name in FOUND for option in PLUGINS[name]]
    beside = run(pytester, "beside", "-n", workers, *options)
    assert beside["rerun"] == 6
    assert {**beside, "rerun": 0} == alone
    reports = [Reports(pytester.path / name) for name in ("alone", "beside")]
    for kind in ("results", "details"):
        first, second = (getattr(report, kind) for report in reports)
        assert {name: first[name] for name in sorted(first)} == {name: second[name] for name in sorted(second)}
    assert (pytester.path / "log.jsonl").stat().st_size
    assert (pytester.path / "report.json").stat().st_size
    assert [*(pytester.path / "allure").glob("*-result.json")]
