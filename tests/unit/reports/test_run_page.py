"""The data of the page, and how it is written."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from page_reader import page_content, page_rows

from pytest_msprobe.answers import Answer, Gap
from pytest_msprobe.reports.jsonl import JsonLines, read_latest_rows
from pytest_msprobe.reports.page import write_page
from pytest_msprobe.suites.precheck.suite import PrecheckSuite
from pytest_msprobe.verdicts import EXPLAINED, OUTCOMES, OutputRow, Status, StepPosition, VerdictRow
from tools.vendor import FOLDER, LIBRARIES

SUITES = {"precheck": PrecheckSuite}.get


def row(call: str, order: int, status: Status = "pass", part: str = "forward", **changes: object) -> VerdictRow:
    output = OutputRow("output.0", "Float64", "Float32", (2, 3), status, figures={"ratio": 0.25, "cosine": 1.0})
    made = VerdictRow(
        node_id=f"/run/step1/rank0/dump.json::{call}::{part}",
        dump="/run/step1/rank0/dump.json",
        call=call,
        part=part,
        recorded=("forward",),
        selected=("forward",),
        status=status,
        outcome=OUTCOMES[status],
        message="why" if status == "skip" else "",
        outputs=() if status == "skip" else (output,),
        suite="precheck",
        place=StepPosition(order=order, cells=("net.Net", "net.fc.Dense"), rank=0, step=1, source="t.py:3, in f: x"),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def written(path: Path, *rows: VerdictRow) -> Path:
    lines = JsonLines(path)
    for one in rows:
        lines.write(one.call, one)
    lines.close()
    return path


def test_rows_stand_in_the_order_of_execution_with_their_cells(tmp_path: Path) -> None:
    late, early = row("Mint.add.1", 7), row("Mint.add.0", 3)
    source = written(tmp_path / "rows.jsonl", late, early)
    write_page(tmp_path / "page.html", [source], SUITES)
    found = page_rows(tmp_path / "page.html")
    assert [one["call"] for one in found] == ["Mint.add.0", "Mint.add.1"]
    assert found[0]["cells"] == ["net.Net", "net.fc.Dense"]
    assert found[0]["heat"] == 0.25
    (section,) = page_content(tmp_path / "page.html")["sections"]
    assert section["slots"] == [
        {"dump": late.dump, "step": 1, "rank": 0, "id": "/run/step1/rank0/dump.json", "name": ""}
    ]
    assert section["rows"]["id"] == [0, 0], "usual node ids are not written"


def test_the_last_row_on_a_record_counts_and_ranks_stay_apart(tmp_path: Path) -> None:
    first = written(tmp_path / "a.jsonl", row("Mint.add.0", 0, "error"), row("Mint.add.1", 1))
    dump = "/run/step1/rank1/dump.json"
    other = row("Mint.add.0", 0, dump=dump, node_id=f"{dump}::Mint.add.0::forward", place=StepPosition(0, (), 1, 1))
    second = written(tmp_path / "b.jsonl", row("Mint.add.0", 0), other)
    assert len([*read_latest_rows([first, second])]) == 3
    write_page(tmp_path / "page.html", [first, second], SUITES)
    found = page_rows(tmp_path / "page.html")
    assert [(one["dump"][10:15], one["call"], one["outcome"]) for one in found] == [
        ("/rank", "Mint.add.0", "passed"),
        ("/rank", "Mint.add.1", "passed"),
        ("/rank", "Mint.add.0", "passed"),
    ]
    assert [one["dump"] for one in found].count(dump) == 1


def section_of(tmp_path: Path, *rows: VerdictRow) -> dict[str, Any]:
    """What the page of some rows holds of their suite."""
    write_page(tmp_path / "page.html", [written(tmp_path / "rows.jsonl", *rows)], SUITES)
    (section,) = page_content(tmp_path / "page.html")["sections"]
    return dict(section)


WRONG_OUTPUT = OutputRow(
    "output.0",
    "",
    "",
    (),
    "error",
    figures={"ratio": 250.0},
    rounding="not explained by rounding (900 times its tolerance)",
)
EXPLAINED_OUTPUT = OutputRow("output.0", "", "", (), "error", figures={"ratio": 2.0}, rounding=EXPLAINED)


def test_the_answer_names_operation_cell_rounding_and_what_was_not_judged(tmp_path: Path) -> None:
    rows = [
        row("Mint.exp.0", 0),
        row("Mint.rsqrt.0", 1, "error", outputs=(WRONG_OUTPUT,)),
        row("Mint.rsqrt.1", 2),
        row("Mint.matmul.0", 3, "error", outputs=(EXPLAINED_OUTPUT,)),
        row("Mint.rand.0", 4, "skip"),
    ]
    section = section_of(tmp_path, *rows)
    diagnosis = section["diagnosis"]
    assert diagnosis["headline"].startswith("Wrong: Mint.rsqrt.0")
    assert len(diagnosis["headline"]) <= 90
    found = [(one["kind"], one["place"]["record"], one["place"]["cell"]) for one in diagnosis["findings"]]
    assert found == [("wrong", "Mint.rsqrt.0.forward", "net.fc.Dense"), ("limits", "Mint.matmul.0.forward", "")]
    assert diagnosis["findings"][0]["id"] == rows[1].node_id
    assert [one["reason"] for one in diagnosis["open"]] == ["why"]
    assert section["answer"]["faults"] == [["Mint.rsqrt", 1, 2]]
    assert section["answer"]["is_bad"]


def test_a_run_without_failures_or_with_explained_ones_says_so(tmp_path: Path) -> None:
    def outcome(*rows: VerdictRow) -> str:
        return str(section_of(tmp_path, *rows)["diagnosis"]["outcome"])

    judged = OutputRow("output.0", "", "", (), "pass", standard="backward-error", figures={"ratio": 0.5})
    assert outcome(row("Mint.exp.0", 0, device="recorded values", outputs=(judged,))) == "right"
    assert outcome(row("Mint.exp.0", 0, "error", outputs=(EXPLAINED_OUTPUT,))) == "wrong"
    assert outcome(row("Mint.exp.0", 0, "skip")) == "nothing judged"


def test_the_title_is_the_verdict_and_the_dump(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", [written(tmp_path / "rows.jsonl", row("Mint.add.0", 0, "error"))], SUITES)
    (title,) = re.findall("<title>(.*)</title>", (tmp_path / "page.html").read_text(encoding="utf-8"))
    (section,) = page_content(tmp_path / "page.html")["sections"]
    assert title == f"{section['diagnosis']['headline']} - run"


def test_the_answer_of_the_run_counts_before_that_of_its_rows(tmp_path: Path) -> None:
    """It may know of dumps that could not be read, which no row says."""
    answer = Answer(suite="precheck", outcome="nothing judged", open=(Gap(kind="refused", reason="it cannot be read"),))
    source = written(tmp_path / "rows.jsonl", row("Mint.add.0", 0))
    write_page(tmp_path / "page.html", [source], SUITES, answer)
    (section,) = page_content(tmp_path / "page.html")["sections"]
    assert section["diagnosis"]["headline"] == "Nothing judged: it cannot be read"


def test_nothing_of_a_dump_is_markup(tmp_path: Path) -> None:
    attack = "</script><img src=x onerror=alert(1)>\ud800"
    source = written(tmp_path / "rows.jsonl", row(f"Mint.{attack}.0", 0, explanation=attack))
    write_page(tmp_path / "page.html", [source], SUITES)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "onerror" not in text.replace("[onerror]", "")
    assert "onerror" in json.dumps(page_rows(tmp_path / "page.html"))


def test_no_script_runs_but_those_of_the_page(tmp_path: Path) -> None:
    """Each script of ours is known by its digest, and none is allowed without one."""
    write_page(tmp_path / "page.html", [written(tmp_path / "rows.jsonl", row("Mint.add.0", 0))], SUITES)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))["script-src"].split()
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) > 5
    assert allowed == [f"'sha256-{digest}'" for digest in digests]


def test_another_file_is_not_replaced_and_a_page_is(tmp_path: Path) -> None:
    source = written(tmp_path / "rows.jsonl", row("Mint.exp.0", 0))
    page = tmp_path / "page.html"
    page.write_text("<html>mine</html>", encoding="utf-8")
    with pytest.raises(FileExistsError, match="is not a page"):
        write_page(page, [source], SUITES)
    page.unlink()
    write_page(page, [source], SUITES)
    write_page(page, [source], SUITES)
    assert [*tmp_path.glob(".page*")] == []


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"name": 1}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 1 is not a verdict row"):
        write_page(tmp_path / "page.html", [tmp_path / "rows.jsonl"], SUITES)
    source = written(tmp_path / "rows2.jsonl", row("Mint.exp.0", 0, suite="later"))
    with pytest.raises(ValueError, match="suite 'later'"):
        write_page(tmp_path / "page.html", [source], SUITES)


def test_rows_that_do_not_know_their_dump_stand_apart(tmp_path: Path) -> None:
    """As those do that a resumed run read from a CSV pair."""
    earlier = row("Mint.add.0", -1, dump="", node_id="", place=None)
    write_page(tmp_path / "page.html", [written(tmp_path / "rows.jsonl", earlier, row("Mint.add.1", 1))], SUITES)
    (section,) = page_content(tmp_path / "page.html")["sections"]
    assert [slot["name"] for slot in section["slots"]] == ["earlier", ""]


def test_vendored_files_are_those_of_the_list() -> None:
    import hashlib

    libraries = json.loads(LIBRARIES.read_text(encoding="utf-8"))
    for name, library in libraries.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == library["sha256"]
        assert (FOLDER / f"LICENSE.{library['package']}").is_file()
    assert {path.name for path in FOLDER.glob("*.js")} == set(libraries)
