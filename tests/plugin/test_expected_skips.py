"""A skip that no line expects fails, in one process and with workers; one that a line expects does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from expected_skips import read_blocks

SUITE = """
import pytest

@pytest.mark.parametrize("name", ["exp", "log"])
def test_kernel(name):
    pytest.skip(f"no kernel for {name}")

@pytest.mark.skipif(True, reason="here [not]")
def test_marked():
    pass

def test_fails_as_expected():
    pytest.xfail("known")
"""
CONFTEST = """
from pathlib import Path

from expected_skips import ExpectedSkips

def pytest_configure(config):
    config.pluginmanager.register(ExpectedSkips(Path(__file__).with_name("skips.txt")), "expected-skips")
"""
KERNELS = "reason: no kernel for *\ntest: test_suite.py::test_kernel\n"
MARKED = "# why\nreason: here [not]\ntest: test_suite.py::test_mark*\n\n"


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(f"[pytest]\ntestpaths = .\npythonpath = {Path(__file__).parents[1]}\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def run(suite: pytest.Pytester, expected: str, *options: str) -> pytest.RunResult:
    (suite.path / "skips.txt").write_text(expected)
    return suite.runpytest("-p", "no:cacheprovider", *options)


WORKERS = pytest.mark.parametrize("workers", ["0", "2"])


@WORKERS
def test_listed_skips_are_skips(suite: pytest.Pytester, workers: str) -> None:
    result = run(suite, MARKED + KERNELS, "-n", workers)
    result.assert_outcomes(skipped=3, xfailed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*nothing was skipped so*")


@WORKERS
def test_a_skip_with_other_parameters_fails(suite: pytest.Pytester, workers: str) -> None:
    result = run(suite, f"{MARKED}{KERNELS}[exp]\n", "-n", workers)
    result.assert_outcomes(skipped=2, failed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "skipped, which skips.txt does not expect:",
            "reason: no kernel for log",
            "test: test_suite.py::test_kernel",
            "[[]log[]]",
        ]
    )


def test_a_skip_for_another_reason_fails(suite: pytest.Pytester) -> None:
    run(suite, f"{MARKED}{KERNELS}".replace("for *", "for exp")).assert_outcomes(skipped=2, failed=1, xfailed=1)


def test_a_skip_by_a_mark_or_before_the_call_fails(suite: pytest.Pytester) -> None:
    result = run(suite, KERNELS)
    result.assert_outcomes(skipped=2, errors=1, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_what_is_printed_can_be_added(suite: pytest.Pytester) -> None:
    lines = run(suite, MARKED).outlines
    blocks = [lines[at + 1 : at + 4] for at, line in enumerate(lines) if line.startswith("skipped, which")]
    added = "\n\n".join("\n".join(block) for block in blocks)
    run(suite, MARKED + added).assert_outcomes(skipped=3, xfailed=1)


@WORKERS
def test_a_module_that_is_skipped_fails(suite: pytest.Pytester, workers: str) -> None:
    suite.makepyfile(test_suite="import pytest\npytest.importorskip('no_such_module')\n")
    result = run(suite, MARKED, "-n", workers)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["reason: could not import 'no_such_module'*", "test: test_suite.py"])
    expected = "reason: could not import 'no_such_module'*\nwhen: no module no_such_module\ntest: test_suite.py\n"
    assert run(suite, expected, "-n", workers).ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(
    ("condition", "is_expected"),
    [
        ("no module pytest", False),
        ("no module pytest no_such_module", True),
        ("no command no-such-command", True),
        ("no command sh", False),
        ("no variable PATH", False),
        ("no variable NO_SUCH_VARIABLE", True),
    ],
)
def test_a_line_holds_where_its_condition_does(suite: pytest.Pytester, condition: str, is_expected: bool) -> None:
    result = run(suite, f"{MARKED}when: {condition}\n{KERNELS}")
    result.assert_outcomes(skipped=3 if is_expected else 1, failed=0 if is_expected else 2, xfailed=1)


def test_lines_that_nothing_needs_are_named_by_a_run_of_everything(suite: pytest.Pytester) -> None:
    expected = f"{MARKED}{KERNELS}[exp]\n[log]\n[cos]\n\nwhen: no module pytest\nreason: x\ntest: y\n"
    result = run(suite, expected)
    assert result.ret == pytest.ExitCode.OK
    assert [line for line in result.outlines if "nothing was skipped so" in line] == [
        "skips.txt, line 5: test_suite.py::test_kernel[cos]: nothing was skipped so"
    ]
    run(suite, expected, "test_suite.py").stdout.no_fnmatch_line("*nothing was skipped so*")


@pytest.mark.parametrize("wrong", ["[exp]", "test: a\nsometimes", "reason: a", "when: raining\nreason: a\ntest: b"])
def test_a_line_that_means_nothing_is_refused(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "skips.txt"
    file.write_text(wrong)
    with pytest.raises(ValueError, match=r"^skips.txt"):
        read_blocks(file)
