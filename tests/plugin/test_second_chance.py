"""The second chance of .ci/run: for failed tests of MindSpore's graph compiler, and for those only."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = (Path(__file__).parents[2] / ".ci" / "run").read_text(encoding="utf-8")
(FUNCTION,) = re.findall(r"^second_chance\(\) \{.*?^\}$", SCRIPT, re.MULTILINE | re.DOTALL)
SUITE = """
import pathlib
import pytest

@pytest.mark.graph_compiler
def test_graph():
    file = pathlib.Path("seen")
    was_there = file.exists()
    file.touch()
    assert was_there or {graph_passes}

@pytest.mark.graph_compiler
def test_graph_that_stays_wrong():
    assert {stays_right}

def test_other():
    assert {other_passes}
"""
PYTEST = f"{sys.executable} -m pytest -p no:msprobe -p no:xdist"
RUN = f"set -euo pipefail\n{FUNCTION}\n{PYTEST} || second_chance {PYTEST}\n"


def ends_well(folder: Path, *, graph: bool = True, stays: bool = True, other: bool = True, run: str = RUN) -> bool:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = graph_compiler\n")
    (folder / "test_suite.py").write_text(SUITE.format(graph_passes=graph, stays_right=stays, other_passes=other))
    done = subprocess.run(["bash", "-c", run], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode == 0


def test_a_graph_gets_a_second_chance(tmp_path: Path) -> None:
    assert ends_well(tmp_path, graph=False)


@pytest.mark.parametrize("graph", [True, False])
def test_any_other_failure_is_final(tmp_path: Path, graph: bool) -> None:
    assert not ends_well(tmp_path, graph=graph, other=False)


def test_a_graph_that_fails_twice_fails(tmp_path: Path) -> None:
    assert not ends_well(tmp_path, graph=False, stays=False)


def test_a_run_that_ends_without_a_failed_test_is_no_success(tmp_path: Path) -> None:
    assert not ends_well(tmp_path, run=RUN.replace(f"{PYTEST} ||", f"{PYTEST} --no-such-option ||"))


def test_without_failures_nothing_runs_again(tmp_path: Path) -> None:
    assert ends_well(tmp_path)


LOST_GRAPH = """
import pytest
from conftest import LOST_GRAPHS

def fails_once(tmp_path, text):
    seen = tmp_path / "seen"
    was_there = seen.exists()
    seen.touch()
    if not was_there:
        raise RuntimeError(text)

@pytest.mark.graph_compiler
def test_lost_graph(tmp_path):
    fails_once(tmp_path, f"The pointer[{LOST_GRAPHS[0]}.")

@pytest.mark.graph_compiler
def test_another_error(tmp_path):
    fails_once(tmp_path, "another error")

def test_without_the_mark(tmp_path):
    fails_once(tmp_path, LOST_GRAPHS[0])
"""


def test_a_lost_graph_alone_is_compiled_again(pytester: pytest.Pytester) -> None:
    text = (Path(__file__).parents[1] / "conftest.py").read_text(encoding="utf-8")
    (hook,) = re.findall(r"^LOST_GRAPHS = .*?(?=^def )", text, re.MULTILINE | re.DOTALL)
    body = re.search(r"^def pytest_pyfunc_call.*?(?=^def )", text, re.MULTILINE | re.DOTALL)
    assert body is not None
    pytester.makeini("[pytest]\nmarkers = graph_compiler")
    pytester.makeconftest(f"from __future__ import annotations\nimport pytest\n{hook}{body[0]}")
    pytester.makepyfile(LOST_GRAPH)
    pytester.runpytest("-p", "no:msprobe").assert_outcomes(passed=1, failed=2)


def test_the_end_of_ci_says_what_was_skipped_and_what_is_slow(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import time, pytest\n"
        "def test_slow(): time.sleep(0.2)\n"
        "def test_quick(): pass\n"
        "@pytest.mark.parametrize('name', 'ab')\n"
        "def test_needs(name): pytest.skip('no torch')\n"
        "def test_known(): pytest.xfail('known')\n"
    )
    pytester.runpytest("-p", "no:msprobe", "--junitxml=tests.xml").assert_outcomes(passed=2, skipped=2, xfailed=1)
    script = Path(__file__).parents[2] / ".ci" / "summary"
    lines = pytester.run(sys.executable, script, "tests.xml").outlines
    assert lines[0] == "skipped 2: no torch"
    assert lines[1].endswith("test_slow")
    assert len(lines) == 6
