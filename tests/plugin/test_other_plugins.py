"""Beside the plugins that projects have: the same rows and the same counts as without them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports
from slow_parameters import WORKERS

from pytest_msprobe.__main__ import main

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
    result.stdout.fnmatch_lines(["11 passed, 3 failed, 1 skipped (records)"])
    return {word: result.parseoutcomes().get(word, 0) for word in ("passed", "failed", "skipped", "rerun")}


@pytest.mark.skipif(not set(EVERY_ONE) <= set(FOUND), reason="needs the extra test-plugins")
@WORKERS
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


#: As pytest-rerunfailures does it: what fails runs again, and its API call is not torn down in between.
RUN_AGAIN = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    reports = runtestprotocol(item, nextitem=item, log=False)
    if any(report.failed for report in reports):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""


def test_a_failing_backward_that_runs_again_has_the_same_verdict(pytester: pytest.Pytester, reports: Reports) -> None:
    DumpBuilder(pytester.path).call("Mint.exp.0", [A], [np.exp(A)], incoming=[A], gradients=[A]).write()
    pytester.makeconftest(RUN_AGAIN)
    pytester.runpytest("--msprobe-dump=dump.json").assert_outcomes(passed=1, failed=1)
    assert "is not below 0.0001" in reports.results["Mint.exp.0"]["Message"]


def clean_dump(folder: Path) -> None:
    """A dump whose overflow run needs no framework: two records and the step pass."""
    DumpBuilder(folder, real=False).call("Mint.neg.0", [A], [-A]).call("Mint.neg.1", [A], [-A]).write()


OVERFLOW = ("--msprobe-dump=dump.json", "--msprobe-suite=overflow")
#: Plugins of pytest that nothing here may need.
WITHOUT = ("logging", "cacheprovider", "warnings", "junitxml", "faulthandler", "unraisableexception", "doctest", "html")


@pytest.mark.parametrize("name", WITHOUT)
def test_a_run_needs_no_other_plugin(pytester: pytest.Pytester, name: str) -> None:
    clean_dump(pytester.path)
    assert main(["conftest", "known_issues"]) == 0
    result = pytester.runpytest(*OVERFLOW, "-p", f"no:{name}", "--msprobe-jsonl=rows.jsonl", "--msprobe-page=page.html")
    result.assert_outcomes(passed=3)
    assert result.ret == 0


def test_a_way_to_distribute_that_a_project_has_for_its_tests_gives_way(pytester: pytest.Pytester) -> None:
    clean_dump(pytester.path)
    pytester.makeini("[pytest]\naddopts = --dist=loadscope\n")
    result = pytester.runpytest_subprocess(*OVERFLOW, "-n1")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["msprobe: --dist load in place of loadscope: a crashing API call would take *"])
    refused = pytester.runpytest_subprocess(*OVERFLOW, "-n1", "--dist=loadscope")
    refused.stderr.fnmatch_lines(["ERROR: --dist loadscope: *; use --dist load"])


def test_a_plugin_that_replaces_the_arguments_is_the_reason(pytester: pytest.Pytester) -> None:
    """As --picked does, when nothing has changed: the dump is not empty, it was not collected."""
    clean_dump(pytester.path)
    pytester.makeconftest(
        "import pytest\n@pytest.hookimpl(trylast=True)\ndef pytest_configure(config): config.args = []\n"
    )
    result = pytester.runpytest("--msprobe-dump=dump.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"  {pytester.path}/dump.json: another plugin has replaced the arguments of pytest*"])
    result.stdout.no_fnmatch_line("*hold no API call*")
