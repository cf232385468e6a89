"""Gradients of runs judged through real pytest runs."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from gradient_runs import FAULT_FROM, NEAREST, train, write_similarities, write_step

DOCS = Path(__file__).parents[2] / "docs" / "gradients.md"
RUNS = ("--msprobe-gradients=a", "--msprobe-golden=b")


@pytest.fixture
def runs(pytester: pytest.Pytester) -> Path:
    """Folder of the runs `a` and `b`, of which `w` parts at step 2."""
    write_similarities(pytester.path / "a", pytester.path / "b", {"w": [1.0, 0.99, 0.9], "v": [1.0, 1.0, 1.0]})
    return pytester.path


def similarities(folder: Path) -> list[list[str]]:
    (path,) = folder.rglob("similarities.csv")
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_the_example_prints_what_the_page_says(pytester: pytest.Pytester, dumps: Path) -> None:
    for name in ("target", "golden"):
        shutil.copytree(dumps / "gradients" / name, pytester.path / name)
    (example,) = re.findall(r"```console\n\$ pytest (.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    command, *lines = example.splitlines()
    pytester.runpytest(*shlex.split(command)).stdout.fnmatch_lines(lines)


def test_a_fault_planted_in_training_is_found(pytester: pytest.Pytester) -> None:
    for name in ("a", "b"):
        train(pytester.path / name, is_faulty=name == "a")
    result = pytester.runpytest(*RUNS, "-v")
    result.stdout.fnmatch_lines([f"first problem step: {FAULT_FROM}, rank 0: *", f"nearest the loss: {NEAREST};*"])


def test_node_ids_outcomes_rows_and_properties(pytester: pytest.Pytester, runs: Path) -> None:
    result = pytester.runpytest(*RUNS, "-v", "--msprobe-jsonl=rows.jsonl", "--junitxml=junit.xml")
    result.assert_outcomes(passed=5, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "a/rank0/grad_summary_0.csv::w PASSED*",
            "a/rank0/grad_summary_2.csv::w FAILED*",
            "_* w, rank 0, step 2 _*",
            "w [[]1000[]]: similarity 0.9000 is 0.0900 below that of step 1; it may fall by 0.03",
            "*signs  900 of 1000 agree",
            "first problem step: 2, rank 0: 1 of 2 gradients",
        ]
    )
    rows = [json.loads(line) for line in (runs / "rows.jsonl").read_text().splitlines()]
    assert [(row["name"], row["status"]) for row in rows][-2:] == [("w.step2", "error"), ("v.step2", "pass")]
    assert rows[0]["message"] == "similarity 1.0000, first step"
    cases = ElementTree.parse(runs / "junit.xml").iter("testcase")
    found = {case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")} for case in cases}
    assert found["w.step2"]["similarity"] == "0.9"
    assert found["w.step2"]["verdict"] == "error"


def test_of_the_steps_from_the_first_problem_step_on_that_one_fails(pytester: pytest.Pytester) -> None:
    names = {"w": [1.0, 0.9, 0.8, 0.7], "v": [1.0, 0.9, 0.9, 0.8], "u": [1.0, 1.0, 0.9, 0.9]}
    write_similarities(pytester.path / "a", pytester.path / "b", names)
    pytester.runpytest(*RUNS, "--junitxml=junit.xml").assert_outcomes(passed=6, failed=2, xfailed=4)
    cases = list(ElementTree.parse(pytester.path / "junit.xml").iter("testcase"))
    assert [case.get("name") for case in cases if case.find("failure") is not None] == ["w.step1", "v.step1"]
    of_last = pytester.runpytest(*RUNS, "-k", "summary_3")
    of_last.assert_outcomes(passed=1, failed=2, deselected=9)  # the first of those that were judged


@pytest.mark.slow
def test_workers_write_the_same_table(pytester: pytest.Pytester, runs: Path) -> None:
    pytester.runpytest(*RUNS, "--msprobe-out=one")
    result = pytester.runpytest(*RUNS, "--msprobe-out=two", "-n2", "-p", "xdist")
    result.assert_outcomes(passed=5, failed=1)
    assert similarities(runs / "one") == similarities(runs / "two")
    assert similarities(runs / "one") == [
        ["step", "0", "1", "2"],
        ["w", "1.0", "0.99", "0.9"],
        ["v", "1.0", "1.0", "1.0"],
        ["summary", "1.0", "0.995", "0.95"],
    ]


@pytest.mark.slow
def test_last_failed_k_and_one_item(pytester: pytest.Pytester, runs: Path) -> None:
    pytester.runpytest(*RUNS)
    pytester.runpytest(*RUNS, "--lf").assert_outcomes(failed=1)
    pytester.runpytest(*RUNS, "-k", "summary_1").assert_outcomes(passed=2, deselected=4)
    pytester.runpytest(*RUNS, "a/rank0/grad_summary_2.csv::w").assert_outcomes(failed=1)
    pytester.runpytest(*RUNS, "a/rank0/grad_summary_1.csv").assert_outcomes(passed=2)


def test_runs_outside_rootdir_and_of_one_rank(pytester: pytest.Pytester, runs: Path) -> None:
    (runs / "project").mkdir()
    result = pytester.runpytest(
        "--rootdir=project",
        "--msprobe-gradients=a/rank0",
        "--msprobe-golden=b/rank0",
        "--msprobe-out=out",
        "--msprobe-jsonl=rows.jsonl",
    )
    result.assert_outcomes(passed=5, failed=1)
    ids = [json.loads(line)["node_id"] for line in (runs / "rows.jsonl").read_text().splitlines()]
    assert ids[-1] == f"{runs}/a/rank0/grad_summary_2.csv::v"
    pytester.runpytest("--rootdir=project", *RUNS, ids[-2]).assert_outcomes(failed=1)
    assert [path.parent.parent.name for path in (runs / "out").rglob("similarities.csv")] == ["out"]


def test_one_item_per_step(pytester: pytest.Pytester, runs: Path) -> None:
    result = pytester.runpytest(*RUNS, "--msprobe-gradient-items=step", "-v", "--msprobe-out=out")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "a/rank0/grad_summary_2.csv::gradients FAILED*",
            "w [[]1000[]]: similarity 0.9000*",
            "*gradients.step2  *0.9*",
        ]
    )
    assert similarities(runs / "out")[1] == ["w", "1.0", "0.99", "0.9"]


def test_steps_are_judged_in_the_order_of_their_numbers(pytester: pytest.Pytester) -> None:
    for step in (2, 10, 1):
        write_step(pytester.path / "a", step, {"w": [1.0]})
    result = pytester.runpytest("--msprobe-gradients=a", "-v")
    result.stdout.fnmatch_lines([f"a/rank0/grad_summary_{step}.csv::w PASSED*" for step in (1, 2, 10)])


def test_one_run_by_itself(pytester: pytest.Pytester) -> None:
    for step, value in enumerate([1.0, 1.0, 1.0, 50.0, np.nan]):
        write_step(pytester.path / "a", step, {"w": [value], "zero": [0.0]})
    result = pytester.runpytest("--msprobe-gradients=a", "-v")
    result.assert_outcomes(passed=8, failed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "first problem step: 3, rank 0: 1 of 2 gradients",
            "  w: norm 50 is 50 times the mean 1 of 3 steps before",
            "problem steps of rank 0: 3-4",
        ]
    )
    zeros = pytester.runpytest("--msprobe-gradients=a", "--msprobe-gradient-fail-zero")
    zeros.assert_outcomes(passed=3, failed=1, xfailed=6)


@pytest.mark.parametrize("golden", [(), ("--msprobe-golden=b",)], ids=["alone", "golden"])
def test_a_rule_that_judges_nothing_is_refused(pytester: pytest.Pytester, runs: Path, golden: tuple[str, ...]) -> None:
    alone = ("fail-zero", "turbulence=3", "collapse=0.1", "warmup=2")
    against = ("first=0.9", "drop=0.1", "drift=0.1", "fail-md5")
    for name in alone if golden else against:
        result = pytester.runpytest("--msprobe-gradients=a", *golden, f"--msprobe-gradient-{name}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        without = "with" if golden else "without"
        flag = f"--msprobe-gradient-{name.partition('=')[0]}"
        result.stderr.fnmatch_lines([f"ERROR: {flag}: has no effect {without} --msprobe-golden*"])


def test_missing_ranks_and_steps_are_named_and_the_others_compared(pytester: pytest.Pytester, runs: Path) -> None:
    write_step(runs / "a", 0, {"w": [1.0]}, rank=1)
    write_step(runs / "b", 0, {"w": [1.0]}, rank=2)
    write_step(runs / "b", 3, {"w": [1.0]})
    result = pytester.runpytest(*RUNS, "--msprobe-diagnosis=answer.json")
    result.assert_outcomes(passed=5, failed=1, errors=3)
    result.stdout.fnmatch_lines(
        [
            f"not compared: rank 0: {runs}/a has no step 3, which the other run has",
            f"not compared: rank 1: {runs}/b has no such rank, which the other run has",
            f"not compared: rank 2: {runs}/a has no such rank, which the other run has",
        ]
    )
    answer = json.loads((runs / "answer.json").read_text(encoding="utf-8"))
    assert len(answer["open"]) + answer["cut"].get("open", 0) == 3
    assert answer["open"][0]["reason"].endswith("which the other run has")


def test_torn_files_cost_their_own_gradients(pytester: pytest.Pytester, runs: Path) -> None:
    signs = runs / "b" / "rank0" / "step1" / "v.npy"
    signs.write_bytes(signs.read_bytes()[:200])
    summary = runs / "a" / "rank0" / "grad_summary_0.csv"
    summary.write_text("param_name,max")
    write_step(runs / "a", 2, {"w": [1.0], "renamed": [1.0]})
    result = pytester.runpytest(*RUNS)
    result.assert_outcomes(passed=1, failed=4, errors=1)
    result.stdout.fnmatch_lines(
        [
            f"*{summary}: has no column min, norm, shape; it is truncated, or no summary of gradients",
            f"v *: {runs}/b/rank0/grad_summary_1.csv: v: signs.data_name: 'v.npy' is truncated: it holds * bytes*",
            "w *: its shape is [[]1[]], that of the golden run [[]1000[]]",
            f"renamed *: {runs}/b/rank0/grad_summary_2.csv has no renamed, which *",
            f"v *: {runs}/a/rank0/grad_summary_2.csv has no v, which *",
            "4 gradients fail, which could not be read or compared",
        ]
    )


MISTAKES = {
    "no folder": (("--msprobe-gradients=none",), "*none: cannot be read: No such file or directory"),
    "no gradients": (("--msprobe-gradients=empty",), "*empty: holds no rank<N>/grad_summary_<step>.csv; give *"),
    "golden without": ((RUNS[0], "--msprobe-golden=empty"), "*empty: holds no rank<N>/grad_summary_<step>.csv; *"),
    "dumps as well": ((*RUNS, "--msprobe-dump=dump.json"), "*gradients and dumps are judged in separate runs*"),
    "suite alone": (("--msprobe-suite=gradients", RUNS[1]), "*--msprobe-suite=gradients needs --msprobe-gradients=*"),
    "items": ((*RUNS, "--msprobe-gradient-items=all"), "*--msprobe-gradient-items: 'all' is none of parameter, step"),
    "a share": ((*RUNS, "--msprobe-gradient-drop=3"), "*--msprobe-gradient-drop: '3' is not between 0 and 1"),
    "a factor": ((*RUNS, "--msprobe-gradient-turbulence=-1"), "*--msprobe-gradient-turbulence: '-1' is below 0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(pytester: pytest.Pytester, runs: Path, mistake: str) -> None:
    options, text = MISTAKES[mistake]
    (runs / "empty").mkdir()
    (runs / "dump.json").write_text("{}")
    result = pytester.runpytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([text])


def test_the_page_begins_with_the_problem_step_and_shows_the_pictures(pytester: pytest.Pytester, runs: Path) -> None:
    pytester.runpytest(*RUNS, "--html=page.html", "--self-contained-html", "--msprobe-out=out")
    page = (runs / "page.html").read_text(encoding="utf-8")
    assert ">Gradients</title>" in page
    assert page.index("first problem step: 2, rank 0") < page.index("compared with")
    assert ">Similarity</th>" in page
    assert "0.900000" in page
    assert re.findall(r'<img alt="([^"]*)" src="data:image/png;base64,', page) == [
        "rank 0: similarity of gradient signs by parameter and step",
        "rank 0: summary",
        "rank 0: w",
        "rank 0: v",
    ]
    assert sorted(path.name for path in (runs / "out").rglob("*.png")) == [
        "heat_map.png",
        "summary_similarities.png",
        "v_similarities.png",
        "w_similarities.png",
    ]


def test_without_matplotlib_the_table_is_written(
    pytester: pytest.Pytester, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = pytester.runpytest(*RUNS, "--msprobe-out=out")
    result.stdout.fnmatch_lines(["no pictures: Matplotlib is not installed *", "similarities: *"])
    assert len(similarities(runs / "out")) == 4


def test_neither_framework_is_loaded(runs: Path) -> None:
    code = (
        "import sys, pytest; pytest.main(['-q', '-p', 'no:hypothesispytest', *sys.argv[1:]]);"
        "print([name for name in ('mindspore', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *RUNS], cwd=runs, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_skip_marks_and_other_tests_in_the_same_run(pytester: pytest.Pytester, runs: Path) -> None:
    pytester.makeconftest(
        """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items:
                if item.name == "w":
                    item.add_marker(pytest.mark.skip(reason="known"))
        """
    )
    pytester.makepyfile("def test_own(): pass")
    result = pytester.runpytest(*RUNS, "test_skip_marks_and_other_tests_in_the_same_run.py")
    result.assert_outcomes(passed=4, skipped=3)
    result.stdout.fnmatch_lines(["3 passed, 0 failed, 3 skipped*"])
