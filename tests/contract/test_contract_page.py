"""The page of --msprobe-page: in every suite it holds each row, also when it is made from files of finished runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contract_runs import Run, Workspace
from page_reader import page_content, page_rows


def make_page(target: Path, *sources: Path) -> Path:
    command = [sys.executable, "-m", "pytest_msprobe", "page", *map(str, sources), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"page: {target}\n"
    return target


def without_times(page: Path) -> Any:
    content = page_content(page)
    content.pop("made")
    for section in content["sections"]:
        section["rows"].pop("seconds")
        section.pop("runs")
        # The run also knows the paths that it was given, from which come commands, and what no row says.
        for known_by_the_run in ("next", "about", "open", "headline"):
            section["diagnosis"].pop(known_by_the_run)
    return content


def test_the_page_holds_every_row_in_the_order_of_execution(plain: Run, suite: str) -> None:
    page = plain.out / "own_page.html"
    assert f"page: {page}" in plain.text
    rows = page_rows(page)
    told = {(row["dump"], row["call"], row["part"]): row for row in plain.rows}
    assert len(rows) == len(told)
    for row in rows:
        source = told.pop((row["dump"], row["call"], row["part"]))
        assert (row["outcome"], row["message"]) == (source["outcome"], source["message"])
        assert row["cells"] == source["place"]["cells"]
        assert row["order"] == source["place"]["order"]
    (section,) = page_content(page)["sections"]
    assert section["suite"] == suite
    assert 0 < len(section["diagnosis"]["headline"]) <= 90
    for slot in range(len(section["slots"])):
        taken = [row for row, own in enumerate(section["rows"]["slot"]) if own == slot]
        orders = [section["rows"]["order"][row] for row in taken if section["rows"]["side"][row] != "golden"]
        known = [order for order in orders if order >= 0]
        assert known == sorted(known)


def test_a_page_of_the_rows_is_the_page_of_the_run(plain: Run) -> None:
    made = make_page(plain.out / "made.html", plain.out / "rows.jsonl")
    assert without_times(made) == without_times(plain.out / "own_page.html")


@pytest.mark.one_suite
def test_a_page_needs_no_file_of_rows(workspace: Workspace, plain: Run) -> None:
    run = workspace.run("--msprobe-jsonl=", "--msprobe-page=alone.html", out="quiet")
    assert [*(workspace.folder / "quiet").glob("*.jsonl")] == []
    assert "rows:" not in run.text
    assert [row["call"] for row in page_rows(workspace.folder / "alone.html")] == [
        row["call"] for row in page_rows(plain.out / "own_page.html")
    ]


@pytest.mark.one_suite
def test_shards_make_one_page(workspace: Workspace, plain: Run) -> None:
    runs = workspace.run_all([f"--msprobe-shard={number}/2"] for number in (1, 2))
    made = make_page(workspace.folder / "both.html", *(run.out / "rows.jsonl" for run in runs))
    keys = ("call", "part", "outcome", "order", "cells")
    whole = page_rows(plain.out / "own_page.html")
    assert [[row[key] for key in keys] for row in page_rows(made)] == [[row[key] for key in keys] for row in whole]
