"""What rows alone amount to: causes over layers, calls and ranks, and no more praise than they are worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_msprobe.answers import RowFacts, RunRows, words
from pytest_msprobe.verdicts import EXPLAINED, UNREADABLE, OutputRow, RowCounts, StepPosition, VerdictRow


def row(
    call: str = "Mint.exp.0", *, rank: int = 0, order: int = 0, cell: str = "", ratio: float | None = None, **more: Any
) -> VerdictRow:
    status = "error" if ratio is not None else more.pop("status", "pass")
    outcome = more.pop("outcome", {"error": "failed", "pass": "passed", "skip": "skipped"}[status])
    output = OutputRow("output.0", "Float64", "Float32", (2,), "error", "off", figures={"ratio": ratio})
    part = more.pop("part", "forward")
    return VerdictRow(
        node_id=f"step0/rank{rank}/dump.json::{call}::{part}",
        dump=f"/d/step0/rank{rank}/dump.json",
        call=call,
        part=part,
        recorded=("forward", "backward"),
        selected=("forward", "backward"),
        status=status,
        outcome=outcome,
        outputs=(output,) if ratio is not None else (),
        place=StepPosition(order, (cell,) if cell else (), rank, 0, "net.py:7, in forward: exp(x)"),
        **more,
    )


def rows_of(*rows: VerdictRow, **facts: Any) -> RunRows:
    facts = {"suite": "precheck", "arguments": ("--msprobe-dump=step0",), **facts}
    found = RunRows(RowFacts(**facts), RowCounts())
    for each in rows:
        found.counts.count(each)
        if not each.is_plain_pass:
            found.add(each)
    return found


def test_layers_and_directions_and_ranks_are_one_cause() -> None:
    answer = rows_of(
        *(
            row(f"Mint.gelu.{layer}", rank=rank, order=layer, cell=f"blocks.{layer}.Mlp", ratio=3.0 + layer, part=part)
            for rank in (0, 1)
            for layer in range(4)
            for part in ("forward", "backward")
        )
    ).answer()
    (cause,) = answer.findings
    assert words.name_of(cause) == "Mint.gelu in 4 layers (0 to 3), forward and backward"
    assert (cause.count, cause.place.ranks, cause.place.steps) == (16, (0, 1), (0,))
    assert (cause.place.record, cause.id) == ("Mint.gelu.0.forward", "step0/rank0/dump.json::Mint.gelu.0::forward")
    assert (cause.figures["ratio"], words.how_wrong(cause)) == (6.0, "6 x its tolerance")
    assert words.headline(answer) == "Wrong: Mint.gelu in 4 layers (0 to 3), 6 x its tolerance, ranks 0 to 1, net.py:7"
    assert answer.next[0].arguments == ("pytest", "--msprobe-dump=step0", "-k", "Mint.gelu.0", "-v")


def test_what_is_hardly_beyond_its_tolerance_does_not_stand_for_what_is_far_beyond() -> None:
    """A kernel that is a little inaccurate everywhere, and one call of it that is wrong."""
    answer = rows_of(
        row("Mint.silu.0", ratio=1.3), row("Mint.silu.1", order=2, ratio=187.0), row("Mint.silu.2", order=4, ratio=5.0)
    ).answer()
    assert [(cause.place.record, cause.count) for cause in answer.findings] == [
        ("Mint.silu.1.forward", 2),
        ("Mint.silu.0.forward", 1),
    ]
    assert "Mint.silu.1" in answer.next[0].arguments


def test_the_worst_cause_is_first_and_what_could_not_be_compared_last() -> None:
    answer = rows_of(
        row("Mint.a.0", status="error", message="cannot be read"),
        row("Mint.b.0", ratio=2.0),
        row("Mint.c.0", ratio=9.0),
    ).answer()
    assert [(cause.place.record, cause.kind) for cause in answer.findings] == [
        ("Mint.c.0.forward", "wrong"),
        ("Mint.b.0.forward", "wrong"),
        ("Mint.a.0.forward", "error"),
    ]


SKIPPED = row("Mint.b.0", status="skip", message="no benchmark")
EXPECTED = row("Mint.b.0", ratio=3.0, outcome="xfailed")


@pytest.mark.parametrize(
    ("rows", "outcome", "gaps"),
    [
        ((), "nothing judged", []),
        ((SKIPPED,), "nothing judged", ["skipped"]),
        ((row(),), "right", []),
        ((row(), SKIPPED), "right", ["skipped"]),
        ((row(), EXPECTED), "right", ["expected"]),
        ((row(), row("Mint.b.0", ratio=3.0)), "wrong", []),
        ((row(ratio=3.0), SKIPPED), "wrong", ["skipped"]),
    ],
)
def test_a_finding_is_wrong_and_what_was_not_judged_is_named(
    rows: tuple[VerdictRow, ...], outcome: str, gaps: list[str]
) -> None:
    answer = rows_of(*rows).answer()
    assert (answer.outcome, [gap.kind for gap in answer.open]) == (outcome, gaps)
    assert sum(answer.counts.values()) == len(rows)
    assert answer.exit_code == {"right": 0, "wrong": 1, "nothing judged": 5}[outcome]


def test_what_rounding_explains_fails_and_the_next_command_passes_it() -> None:
    output = OutputRow("output.0", "Float64", "Float32", (2,), "error", "off", rounding=EXPLAINED)
    answer = rows_of(row(), replace(row("Mint.b.0", ratio=1.0), outputs=(output,))).answer()
    assert (answer.outcome, [finding.kind for finding in answer.findings]) == ("wrong", ["limits"])
    assert answer.next[0].arguments[-1] == "--msprobe-standard=backward-error"
    assert words.headline(answer) == "Wrong: 1 record is beyond the limits, all by rounding"


def test_records_that_inherit_are_right_only_where_their_cause_was_judged() -> None:
    inherited = row("Mint.b.0", ratio=3.0, outcome="xfailed")
    whole = rows_of(row(), inherited, excuses=True).answer()
    assert whole.outcome == "right"
    selected = {"is_selected": True, "keyword": "backward", "arguments": ("--msprobe-dump=step0", "-k", "backward")}
    part = rows_of(row(), inherited, excuses=True, **selected).answer()
    assert (part.outcome, part.findings[0].kind, part.findings[0].count) == ("wrong", "cause not selected", 1)
    assert part.next[0].arguments == ("pytest", "--msprobe-dump=step0")


def test_records_that_cannot_be_read_are_one_finding_of_their_dump() -> None:
    torn = [row(f"Mint.b.{n}", status="error", message="/d: torn", properties=((UNREADABLE, "dump"),)) for n in (0, 1)]
    answer = rows_of(row(), *torn).answer()
    assert [(finding.kind, finding.count) for finding in answer.findings] == [("unreadable", 2)]
    assert words.headline(answer) == "Wrong: 2 of 3 records cannot be read: /d: torn"


def test_the_command_that_repeats_leaves_files_and_workers_out() -> None:
    facts = RowFacts(
        arguments=(
            "--msprobe-dump=a",
            "-n",
            "4",
            "-q",
            "--msprobe-page=p.html",
            "-k",
            "x",
            "--tb=short",
            "-m",
            "Mint",
            "b",
        )
    )
    assert facts.command("-v") == ("pytest", "--msprobe-dump=a", "-m", "Mint", "b", "-v")
