"""A skip that no entry expects fails, in one process and with workers; one that an entry expects does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = """
import pytest

@pytest.mark.parametrize("name", ["exp", "log"])
def test_kernel(name):
    pytest.skip(f"no kernel for {name}")

@pytest.mark.skipif(True, reason="here")
def test_marked():
    pass

def test_fails_as_expected():
    pytest.xfail("known")
"""
CONFTEST = """
from expected_skips import ExpectedSkip, ExpectedSkips

def pytest_configure(config):
    config.pluginmanager.register(ExpectedSkips([{}]), "expected-skips")
"""
KERNELS = "ExpectedSkip('no kernel for *', 'test_suite.py::test_kernel*'),"
MARKED = "ExpectedSkip('here', 'test_suite.py::test_mark*'),"
WORKERS = pytest.mark.parametrize("workers", ["0", "2"])


def run(pytester: pytest.Pytester, expected: str, *options: str, suite: str = SUITE) -> pytest.RunResult:
    pytester.makeini(f"[pytest]\npythonpath = {ROOT / 'tests'}\n")
    pytester.makeconftest(CONFTEST.format(expected))
    pytester.makepyfile(test_suite=suite)
    return pytester.runpytest("-p", "no:cacheprovider", *options)


@WORKERS
def test_what_is_listed_is_skipped_and_nothing_else(pytester: pytest.Pytester, workers: str) -> None:
    result = run(pytester, MARKED + KERNELS, "-n", workers)
    result.assert_outcomes(skipped=3, xfailed=1)
    assert result.ret == pytest.ExitCode.OK
    result = run(pytester, MARKED + KERNELS.replace("for *", "for exp"), "-n", workers)
    result.assert_outcomes(skipped=2, failed=1, xfailed=1)
    result.stdout.fnmatch_lines(["skipped, which tests/expected_skips.py does not expect: no kernel for log"])


@pytest.mark.parametrize(
    ("expected", "outcomes"),
    [
        (MARKED + KERNELS.replace("test_kernel", "test_kernel[[]exp]"), {"skipped": 2, "failed": 1}),
        (KERNELS, {"skipped": 2, "errors": 1}),  # the mark skips before the call
        (MARKED + KERNELS.replace("*')", "*', lacks_module('pytest'))"), {"skipped": 1, "failed": 2}),
        (MARKED + KERNELS.replace("*')", "*', lacks_module('pytest', 'no_such_module'))"), {"skipped": 3}),
        (MARKED + KERNELS.replace("*')", "*', lacks_command('sh'))"), {"skipped": 1, "failed": 2}),
        (MARKED + KERNELS.replace("*')", "*', lacks_command('no-such-command'))"), {"skipped": 3}),
    ],
)
def test_parameters_marks_and_conditions_count(
    pytester: pytest.Pytester, expected: str, outcomes: dict[str, int]
) -> None:
    expected = expected.replace("lacks", "__import__('expected_skips').lacks")
    run(pytester, expected).assert_outcomes(**outcomes, xfailed=1)


@WORKERS
def test_a_module_that_is_skipped_fails(pytester: pytest.Pytester, workers: str) -> None:
    suite = "import pytest\npytest.importorskip('no_such_module')\n"
    result = run(pytester, "", "-n", workers, suite=suite)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*does not expect: could not import 'no_such_module'*"])
    expected = "ExpectedSkip('could not import *', 'test_suite.py'),"
    assert run(pytester, expected, "-n", workers, suite=suite).ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.needs("torch")
def test_a_dump_in_this_repository_is_judged_without_a_word_about_our_tests(tmp_path: Path) -> None:
    options = ["--msprobe-dump=tests/dumps/gpt_tiny_tensor", f"--msprobe-out={tmp_path}", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "50"})
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("180 passed")
    assert len(lines) < 30
    assert max(map(len, lines[:3])) <= 50  # what the user has set is not undone
    assert not re.search(r"tests/(?!dumps)|left out|not installed|skipped, which", result.stdout)
