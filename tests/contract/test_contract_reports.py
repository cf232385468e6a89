"""Every record of the input is one item and one row, and all reports of a run tell the same."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from contract_runs import Run, Workspace, assert_whole
from contract_samples import SAMPLES

from msprobe_collector.dump_format import DIRECTIONS


def test_records_in_are_rows_out(plain: Run, suite: str) -> None:
    assert len(plain.rows) == SAMPLES[suite].count(plain.folder)
    assert_whole(plain, plain.outcomes)
    assert plain.ids.keys() >= {"passed", "failed"}, "a sample needs records that pass and records that fail"


def test_rows_name_their_record(plain: Run) -> None:
    keys = {"name", "node_id", "dump", "call", "part", "direction", "status", "message", "outcome"}
    for row in plain.rows:
        assert row.keys() >= keys
        assert row["part"] == row["node_id"].rpartition("::")[2]
        assert row["call"] in row["name"]
        assert row["status"] == {"passed": "pass", "failed": "error", "skipped": "skip"}[row["outcome"]]
        assert row["message"] or row["status"] == "pass" or row["outputs"], f"no word on {row['node_id']}"
        if row["part"] in DIRECTIONS:
            assert row["direction"] == row["part"]
    names = Counter((row["name"], row["part"]) for row in plain.rows)
    assert names.most_common(1)[0][1] == 1


def test_a_sample_with_cells_says_who_judges_them(plain: Run, suite: str) -> None:
    cells = [row for row in plain.rows if row["call"].startswith("Cell.")]
    if suite == "precheck":
        assert not cells
        assert re.search("^msprobe: .*2 (records of Cells|Cell records)", plain.text, re.MULTILINE)
    elif "Cell" in SAMPLES[suite].types:
        assert len(cells) == 2


def test_junit_names_the_call_and_its_verdict(plain: Run) -> None:
    rows = {(row["dump"], row["call"], row["direction"]): row for row in plain.rows}
    tags = {"passed": [], "failed": ["failure"], "skipped": ["skipped"]}
    for name, properties, result in plain.test_cases:
        assert properties.keys() >= {"dump", "api", "verdict"}, f"JUnit case {name}"
        row = rows.pop((properties["dump"], properties["api"], properties.get("direction")))
        assert row["call"] in name
        assert (properties["verdict"], result) == (row["status"], tags[row["outcome"]])
    assert not rows


def test_the_page_counts_as_pytest_does(plain: Run) -> None:
    head, table = plain.page
    counts = dict(Counter(plain.outcomes.values()))
    assert head == counts
    assert table == counts


def test_each_verdict_is_told_once(plain: Run) -> None:
    told = [line.split() for line in (plain.folder / "verdicts.txt").read_text().splitlines()]
    assert told == [[row["node_id"], row["status"]] for row in plain.rows]


def test_each_call_is_asked_for_once(plain: Run, suite: str) -> None:
    asked = [line.split() for line in (plain.folder / "selected.txt").read_text().splitlines()]
    assert {line[0] for line in asked} >= {*SAMPLES[suite].types}
    assert len({tuple(line) for line in asked}) == len(asked)
    assert {Path(line[-1]) for line in asked} == {Path(row["dump"]) for row in plain.rows}
    assert all(Path(line[-1]).is_absolute() for line in asked)


def test_no_framework_is_loaded_for_recorded_values_but_that_of_a_benchmark(workspace: Workspace, plain: Run) -> None:
    assert [name for name in plain.frameworks if name not in workspace.sample.benchmarks] == []


@pytest.mark.one_suite
def test_the_only_output_is_what_was_asked_for(workspace: Workspace, plain: Run) -> None:
    """The same verdicts without any report, and the same exit code."""
    run = workspace.run("--msprobe-jsonl=", out="quiet")
    assert not (workspace.folder / "quiet" / "rows.jsonl").exists()
    assert (run.exit_code, run.summary, run.outcomes) == (plain.exit_code, plain.summary, plain.outcomes)
