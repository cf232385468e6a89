"""The fixture and the mark of assertions on kernels, their reports, and the pages that show how to use them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills" / "verify-kernel" / "SKILL.md"
PAGE = ROOT / "docs" / "own_kernels.md"
TESTS = """
import pathlib, pytest, torch

@pytest.fixture
def x():
    return torch.randn(4, 8)

@pytest.mark.rounding_seeds(3)
def test_right(rounding_only, x):
    assert rounding_only(torch.exp, torch.exp, x).status == "pass"

@pytest.mark.rounding_seeds(2)
def test_drawn(x, request):
    pathlib.Path(request.node.name).write_text(str(x))

def test_wrong(rounding_only, x):
    rounding_only(lambda x: x.exp() * 1.5, torch.exp, x)
"""


def rows_of(path: Path) -> list[dict[str, object]]:
    return json.loads(path.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
def test_the_report_has_all_assertions_the_nearest_first(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("--rounding-report=rows.json", "--junitxml=j.xml", "-p", "no:cacheprovider", *workers)
    result.assert_outcomes(passed=5, failed=1)
    rows = rows_of(pytester.path / "rows.json")
    assert [row["status"] for row in rows] == ["error", "pass", "pass", "pass"]
    assert [row["of its tolerance"] for row in rows] == sorted((row["of its tolerance"] for row in rows), reverse=True)  # type: ignore[type-var]
    assert rows[0]["pattern"] == "1.5 x too large"
    assert str(rows[0]["test"]).endswith("::test_wrong")
    assert {row["seed"] for row in rows[1:]} == {0, 1, 2}
    result.stdout.fnmatch_lines(["rounding: 4 assertions, nearest to the limit <lambda> (*::test_wrong): *rows.json"])
    cases = ET.parse(pytester.path / "j.xml").iter("testcase")
    values = {case.get("name"): [each.get("value") for each in case.iter("property")] for case in cases}
    first, second = ((pytester.path / f"test_drawn[seed{seed}]").read_text() for seed in (0, 1))
    assert first != second
    assert values["test_wrong"] == [str(rows[0]["of its tolerance"])]


def test_the_number_of_seeds_may_be_another(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("--rounding-seeds=1", "--strict-markers", "-k", "not wrong", "--rounding-report=t.html")
    result.assert_outcomes(passed=2, deselected=1)
    table = (pytester.path / "t.html").read_text()
    assert table.count("<tr") == 2
    assert "torch" not in table  # names and figures, nothing that was run
    pytester.runpytest("-k", "not wrong", "--rounding-report=t.html").assert_outcomes(passed=5, deselected=1)


def test_pytest_html_shows_the_figures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    pytester.runpytest("-k", "wrong", "--html=h.html", "--self-contained-html").assert_outcomes(failed=1, deselected=5)
    assert "1.5 x too large" in (pytester.path / "h.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounding-seeds=0"], "--rounding-seeds: must be at least 1, not 0"),
        (["--rounding-report=rows.txt"], "must be a file.html or file.json"),
        (["--rounding-report=missing/rows.json"], "in an existing folder"),
        (["--rounding-report=mine.html"], "is there, and no report of this plugin"),
    ],
    ids=["seeds", "suffix", "folder", "foreign"],
)
def test_options_that_are_wrong(pytester: pytest.Pytester, arguments: list[str], words: str) -> None:
    (pytester.path / "mine.html").write_text("<p>mine")
    result = pytester.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{words}*"])
    assert (pytester.path / "mine.html").read_text() == "<p>mine"


def test_a_mark_without_a_number_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.rounding_seeds\ndef test_one(): pass")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_one: write rounding_seeds(20), a number"])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_example_of_the_page_passes(pytester: pytest.Pytester) -> None:
    (example,) = blocks(PAGE, "python")
    pytester.makepyfile(example)
    pytester.runpytest().assert_outcomes(passed=1)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1, 1.01], ids=["right", "wrong"])
def test_the_commands_of_the_page_for_agents_do_what_it_says(tmp_path: Path, factor: float) -> None:
    (example,), commands = blocks(SKILL, "python"), "".join(blocks(SKILL, "bash")).splitlines()
    (tmp_path / "kernel.py").write_text(f"def my_kernel(x):\n    return (x.float().softmax(-1) * {factor}).to(x.dtype)")
    (tmp_path / "test_kernel.py").write_text(example)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    assert [command.split()[0] for command in commands] == ["pytest", "pytest"]
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == (factor != 1), done.stdout + done.stderr
        assert ("1.01 x too large" in done.stdout) == (factor != 1)
    assert len(rows_of(tmp_path / "rounding.json")) == 30


def test_what_the_pages_name_exists() -> None:
    from inspect import signature

    from pytest_msprobe import rounding_of

    known = set(signature(rounding_of).parameters)
    for page in (PAGE, SKILL):
        named = re.findall(r"`(?:@pytest\.mark\.)?(\w+)=", page.read_text(encoding="utf-8"))
        assert set(named) <= {*known, "atol"}, page


def test_a_failing_call_of_a_dump_is_written_as_an_assertion(pytester: pytest.Pytester) -> None:
    import numpy as np
    from dump_builder import DumpBuilder

    pytest.importorskip("mindspore")
    array = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.tanh.0", [array], [np.tanh(array) * np.float32(1.1)])
    pytester.runpytest(f"--msprobe-dump={builder.write()}", "--msprobe-reproducers=r")
    script = pytester.path / "r" / "test_Mint_tanh_0.py"
    assert "    assert_rounding_only(recorded0, reference, x0, gradients=False)" in script.read_text()
    result = pytester.runpytest_subprocess(script)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: the result is off by more than rounding: 1.1 x too large"])
