"""Whatever becomes of an item, its row, pytest's counts, the summary and the exit code say the same."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from contract_runs import Run, Workspace, assert_whole, judge_that
from slow_parameters import WITH_WORKERS

pytestmark = pytest.mark.one_suite

MARKS = """
import pytest

MARKS = {marks!r}

def pytest_collection_modifyitems(items):
    for item in items:
        name, arguments = MARKS.get(item.nodeid, ("", {{}}))
        if name:
            item.add_marker(getattr(pytest.mark, name)(**arguments))
"""


def unusual(plain: Run) -> tuple[str, dict[str, tuple[str, str]]]:
    """A conftest.py with a mark of each kind and an exception, and (outcome, status) by node id of what they change."""
    passing, failing = plain.ids["passed"], plain.ids["failed"]
    marks = {
        passing[0]: ("skip", {"reason": "not today"}),
        passing[1]: ("xfail", {"strict": False, "reason": "known"}),
        passing[2]: ("xfail", {"strict": True, "reason": "known"}),
        failing[0]: ("xfail", {"strict": True, "reason": "known"}),
    }
    changed = {
        passing[0]: ("skipped", "skip"),
        passing[1]: ("xpassed", "pass"),
        passing[2]: ("failed", "pass"),
        passing[3]: ("failed", "error"),
        failing[0]: ("xfailed", "error"),
    }
    broken = judge_that("raise RuntimeError('no more')", plain.by_id[passing[3]])
    return MARKS.format(marks=marks) + broken, changed


@WITH_WORKERS
def test_marks_and_an_exception_in_the_judge(workspace: Workspace, plain: Run, workers: tuple[str, ...]) -> None:
    conftest, changed = unusual(plain)
    run = workspace.run(*workers, conftest=conftest, reports=True)
    usual = {node_id: (row["outcome"], row["status"]) for node_id, row in plain.by_id.items()}
    assert {row["node_id"]: (row["outcome"], row["status"]) for row in run.rows} == {**usual, **changed}
    assert_whole(run, plain.by_id)
    skipped, *_, broken, _ = (run.by_id[node_id] for node_id in changed)
    assert "not today" in skipped["message"]
    assert "internal error" in broken["message"]
    assert "RuntimeError: no more" in broken["message"]
    assert Counter(properties["verdict"] for _, properties, _ in run.test_cases) == Counter(
        row["status"] for row in run.rows
    )
    head, table = run.page
    words = {"xfailed": "expected failures", "xpassed": "unexpected passes"}
    counts = Counter(run.outcomes.values())
    assert head == {words.get(word, word): number for word, number in counts.items()}
    assert table == counts


def test_last_failed_runs_what_failed(workspace: Workspace, plain: Run) -> None:
    conftest, _ = unusual(plain)
    first, again = workspace.run_all([(), ("--lf",)], conftest=conftest)
    assert_whole(again, first.ids["failed"])
    assert again.outcomes == dict.fromkeys(first.ids["failed"], "failed")


def test_a_strictly_expected_failure_that_fails_alone_is_a_success(workspace: Workspace, plain: Run) -> None:
    marks = {node_id: ("xfail", {"strict": True}) for node_id in plain.ids["failed"]}
    kept = [plain.ids["failed"][0], plain.ids["passed"][0]]
    left_out = [f"--deselect={node_id}" for node_id in plain.by_id if node_id not in kept]
    run = workspace.run(*left_out, conftest=MARKS.format(marks=marks))
    assert_whole(run, kept)
    assert run.outcomes == {kept[0]: "xfailed", kept[1]: "passed"}
    assert run.exit_code == 0


def test_the_first_failure_may_end_the_run(workspace: Workspace, plain: Run) -> None:
    passing = plain.ids["passed"]
    run = workspace.run("-x", conftest=judge_that("raise RuntimeError('no more')", plain.by_id[passing[2]]))
    ran = [row["node_id"] for row in plain.rows]
    assert_whole(run, ran[: ran.index(passing[2]) + 1])
    assert run.exit_code == 1
    left = len(ran) - ran.index(passing[2]) - 1
    assert left in [each["count"] for each in run.answer["open"] if each["kind"] == "unfinished"]


DEATHS = {"SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)", "exit code 3": "os._exit(3)"}


def test_workers_that_die_cost_a_record_each(workspace: Workspace, plain: Run) -> None:
    lost = dict(zip(plain.ids["passed"][2::3], DEATHS))
    first, second = (plain.by_id[node_id] for node_id in lost)
    is_first = f"(record.call, record.part) == {(first['call'], first['part'])!r}"
    act = f"{DEATHS['SIGKILL']} if {is_first} else {DEATHS['exit code 3']}"
    run = workspace.run("-n2", conftest=judge_that(act, first, second), reports=True)
    assert run.outcomes == {**plain.outcomes, **dict.fromkeys(lost, "failed")}
    assert_whole(run, plain.by_id)
    same = ("name", "call", "part", "direction", "node_id")
    for node_id, words in lost.items():
        row = run.by_id[node_id]
        assert row["status"] == "error"
        assert re.search(rf"died in this check.*{words}", row["message"]), row["message"]
        assert {key: row[key] for key in same} == {key: plain.by_id[node_id][key] for key in same}
        verdicts = [
            found["verdict"]
            for _, found, tags in run.test_cases
            if tags
            and (found["dump"], found["api"], found.get("direction")) == (row["dump"], row["call"], row["direction"])
        ]
        assert verdicts == ["error"]
    counts = dict(Counter(run.outcomes.values()))
    assert run.page == (counts, counts)


def test_a_record_that_hangs_costs_one_record(workspace: Workspace, plain: Run) -> None:
    lost = plain.ids["passed"][1]
    conftest = judge_that("time.sleep(60)", plain.by_id[lost])
    run = workspace.run("-n1", "--msprobe-timeout=2", conftest=conftest)
    assert run.outcomes == {**plain.outcomes, lost: "failed"}
    assert_whole(run, plain.by_id)
    assert "did not end within 2 s" in run.by_id[lost]["message"]


def test_a_run_that_judged_nothing_is_no_success(workspace: Workspace, plain: Run) -> None:
    conftest = MARKS.format(marks={node_id: ("skip", {"reason": "not today"}) for node_id in plain.by_id})
    accepts = workspace.sample.accepts
    run, accepted = workspace.run_all([accepts, (*accepts, "--msprobe-allow-empty")], conftest=conftest)
    for each in (run, accepted):
        assert each.outcomes == dict.fromkeys(plain.by_id, "skipped")
        assert_whole(each, plain.by_id)
    assert run.exit_code == 5, run.text
    assert "--msprobe-allow-empty" in run.text
    assert accepted.exit_code == 0, accepted.text
    for praise in ("agrees", "no divergence", "no anomaly", "no problem step"):
        assert praise not in run.text, f"nothing was judged, and the summary says: {praise}"


def test_an_error_before_the_judge_is_a_row_too(workspace: Workspace, plain: Run) -> None:
    """A broken fixture or setup hook of a conftest.py."""
    broken = plain.ids["passed"][0]
    conftest = (
        "import pytest\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_runtest_setup(item):\n"
        f"    if item.nodeid == {broken!r}: raise OSError('not ready')\n"
    )
    run = workspace.run(conftest=conftest)
    assert run.outcomes == {**plain.outcomes, broken: "error"}
    row = run.by_id[broken]
    assert (row["status"], "OSError: not ready" in row["message"]) == ("error", True)
    assert len(run.rows) == len(plain.rows)
    assert run.summary["failed"] == plain.summary["failed"] + 1
    assert run.exit_code == 1
