"""Failures of a baseline are expected ones, in every suite, whatever folder the files lie in; all else fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract_runs import Run, Workspace, assert_whole, read_rows
from contract_samples import SAMPLES

from pytest_msprobe.__main__ import main

pytestmark = pytest.mark.one_suite

Content = dict[str, Any]


@pytest.fixture
def baseline(plain: Run, workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> Path:
    """The baseline of the plain run, whose sample lies in another folder."""
    file = workspace.folder / "baseline.json"
    assert main(["baseline", str(plain.out / "rows.jsonl"), "-o", str(file)]) == 0
    assert f"wrote {file}: {len(plain.ids['failed'])} known failure" in capsys.readouterr().out
    return file


def changed(file: Path, name: str, change: Callable[[Content], None]) -> str:
    """The option for a copy of the baseline `file`, called `name`, whose content was changed."""
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    (file.parent / name).write_text(json.dumps(content), encoding="utf-8")
    return f"--msprobe-baseline={name}"


def line(run: Run) -> str:
    """What the summary says of the baseline."""
    (found,) = re.findall(r"^baseline: (.*)$", run.text, re.MULTILINE)
    return str(found)


def scaled(factor: float) -> Callable[[Content], None]:
    """A change of the first known failure's figures, or of its message where it has none."""

    def change(content: Content) -> None:
        first = content["known"][0]
        first["outputs"] = {
            label: None if value is None else value * factor for label, value in first.get("outputs", {}).items()
        }
        if "figure" not in first:
            first["says"] = "something else"

    return change


def passed_beside(plain: Run, baseline: Path) -> dict[str, Any]:
    """The row of a record that passes, in the file of the first known failure."""
    first = json.loads(baseline.read_text(encoding="utf-8"))["known"][0]
    (dump, *_) = (
        row["dump"]
        for row in plain.rows
        if (row["call"], row["part"], row["outcome"]) == (first["call"], first["part"], "failed")
    )
    return next(row for row in plain.rows if row["outcome"] == "passed" and row["dump"] == dump)


def with_passing(row: dict[str, Any]) -> Callable[[Content], None]:
    """A change that takes a passed record for a known failure."""

    def change(content: Content) -> None:
        content["known"].append({**content["known"][0], "call": row["call"], "part": row["part"]})

    return change


def test_known_failures_are_expected(workspace: Workspace, plain: Run, baseline: Path) -> None:
    content = json.loads(baseline.read_text(encoding="utf-8"))
    count = len(plain.ids["failed"]) + len(content["run"])  # a run may be no success beside its items
    usual = {node_id: row["outcome"] for node_id, row in plain.by_id.items()}
    known = {**usual, **dict.fromkeys(plain.ids["failed"], "xfailed")}
    option = "--msprobe-baseline=baseline.json"
    passed = passed_beside(plain, baseline)
    alone, halves, less, worse, better, gone, none = workspace.run_all(
        [
            (option, "-rx"),
            (option, "--msprobe-shard=1/2"),
            (changed(baseline, "less.json", lambda content: content["known"].pop(0)),),
            (changed(baseline, "worse.json", scaled(1 / 16)),),
            (changed(baseline, "better.json", scaled(16)),),
            (changed(baseline, "gone.json", with_passing(passed)),),
            (changed(baseline, "none.json", lambda content: content.update(known=[], run=[])),),
        ]
    )
    assert {node_id: row["outcome"] for node_id, row in alone.by_id.items()} == known
    assert_whole(alone, plain.by_id)
    assert line(alone) == f"0 new, 0 gone, {count} as before"
    assert alone.exit_code == 0, alone.text
    assert len(
        re.findall(r"^XFAIL .* - known since \d{4}-\d\d-\d\d, pytest-msprobe ", alone.text, re.MULTILINE)
    ) >= len(plain.ids["failed"])
    assert all(known[row["node_id"]] == row["outcome"] for row in halves.rows)
    assert "without a record" not in line(halves)

    assert line(less) == f"1 new, 0 gone, {count - 1} as before"
    assert (less.exit_code, len(less.ids["failed"])) == (1, 1)
    assert "\nnot in the baseline\n" in less.text

    assert line(worse) == f"0 new, 1 worse, 0 gone, {count - 1} as before"
    assert (worse.exit_code, len(worse.ids["failed"])) == (1, 1)
    assert re.search(r"^worse than in the baseline: .* in the baseline, known since ", worse.text, re.MULTILINE)

    figures = "figure" in content["known"][0]
    words = (
        f"0 new, 0 gone, {count} as before (1 of them better)"
        if figures
        else f"0 new, 1 worse, 0 gone, {count - 1} as before"
    )
    assert line(better) == words
    assert better.exit_code == (0 if figures else 1)

    assert line(gone) == f"0 new, 1 gone, {count} as before"
    assert f"gone from the baseline: {passed['name']}" in gone.text
    assert gone.exit_code == 0, gone.text

    assert line(none) == f"{count} new, 0 gone, 0 as before"
    assert none.exit_code == 1
    assert none.outcomes == usual


def test_workers_reports_and_a_resumed_run_know_the_same(workspace: Workspace, plain: Run, baseline: Path) -> None:
    option = "--msprobe-baseline=baseline.json"
    run = workspace.run(option, "-n2", reports=True)
    expected = {**plain.outcomes, **dict.fromkeys(plain.ids["failed"], "xfailed")}
    assert run.outcomes == expected
    assert_whole(run, plain.by_id)
    assert run.exit_code == 0, run.text
    known = [found for _, found, _ in run.test_cases if found.get("baseline", "").startswith("known: known since ")]
    assert len(known) == len(plain.ids["failed"])
    assert run.page[0].get("failed", 0) == 0
    assert run.page[0]["expected failures"] == len(plain.ids["failed"])

    rows = run.out / "rows.jsonl"
    lines = rows.read_text(encoding="utf-8").splitlines(keepends=True)
    rows.write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    (resumed,) = workspace.run_all([(option, f"--msprobe-resume={rows}")])
    assert {row["node_id"]: row["outcome"] for row in read_rows(rows)} == expected
    assert line(resumed) == line(run)
    assert resumed.exit_code == 0, resumed.text


def test_merged_rows_and_a_new_baseline_say_what_changed(
    workspace: Workspace, plain: Run, baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = changed(baseline, "less.json", lambda content: content["known"].pop(0))
    halves = workspace.run_all([(option, f"--msprobe-shard={half}/2") for half in (1, 2)])
    files = [str(half.out / "rows.jsonl") for half in halves]
    count = len(plain.ids["failed"])
    assert main(["merge", *files, "-o", str(workspace.folder / "merged")]) == 1
    assert f"\nbaseline: 1 new, 0 gone, {count - 1} as before\n" in capsys.readouterr().out
    kept = json.loads(baseline.read_text(encoding="utf-8"))
    kept["known"][-1]["reason"] = "an old kernel"
    baseline.write_text(json.dumps(kept), encoding="utf-8")
    assert main(["baseline", *files, "-o", str(baseline)]) == 0
    assert f" (0 new, 0 gone, {count} as before)" in capsys.readouterr().out
    content = json.loads(baseline.read_text(encoding="utf-8"))
    assert [known.get("reason") for known in content["known"]] == [*[None] * (count - 1), "an old kernel"]


def test_a_baseline_of_a_part_says_so_and_keeps_what_it_did_not_see(
    workspace: Workspace, plain: Run, baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [known["call"] for known in json.loads(baseline.read_text(encoding="utf-8"))["known"]]
    capsys.readouterr()
    runs = {("--msprobe-shard=2/2",): "1 of 2 shards", ("-k", names[0].partition(" ")[0]): "-k left items out"}
    runs |= {("--maxfail=1",): "it ended before", (): ""}
    for run, words in zip(workspace.run_all(runs), runs.values()):
        if not (run.out / "rows.jsonl").exists():
            continue  # neither this call nor such a shard is in every sample
        assert main(["baseline", str(run.out / "rows.jsonl"), "-o", str(baseline)]) == 0
        said = capsys.readouterr().out
        assert ("of a part of the run only" in said) == bool(words), said
        assert words in said
        assert [known["call"] for known in json.loads(baseline.read_text(encoding="utf-8"))["known"]] == names


BAD = {
    "nothing": (None, "cannot be read: No such file or directory"),
    "a folder": ("", "cannot be read: it is not a plain file"),
    "no JSON": ("{", "is not a baseline: Input data was truncated"),
    "another object": ("[]", "is not a baseline: Expected `object`, got `array`"),
    "a wrong entry": ('{"baseline": 1, "known": [{"suite": 3}]}', "got `int` - at `$.known[0].suite`"),
    "another form": ('{"baseline": 2}', "is a baseline of form 2, which this version does not know; it knows form 1"),
    "a wrong factor": ('{"baseline": 1, "worse": 0.5}', "key 'worse': 0.5 is not a factor of 1 or more"),
}


def test_a_file_that_is_no_baseline_is_one_line(tmp_path: Path) -> None:
    workspace = Workspace(SAMPLES["precheck"], tmp_path)
    for name, (text, _) in BAD.items():
        if text == "":
            (workspace.folder / name).mkdir()
        elif text is not None:
            (workspace.folder / name).write_text(text, encoding="utf-8")
    runs = workspace.run_all([(f"--msprobe-baseline={name}",) for name in BAD])
    for run, (name, (_, reason)) in zip(runs, BAD.items()):
        lines = [each for each in run.text.splitlines() if each.startswith("ERROR: ")]
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        assert len(lines) == 1
        assert re.match(rf"ERROR: --msprobe-baseline=\S*{name}: ", lines[0]), lines[0]
        assert reason in lines[0], lines[0]
