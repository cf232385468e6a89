"""What rows alone amount to: causes over layers, calls and ranks, and no more praise than they are worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_msprobe.diagnosis import CannotSay, RunFacts, RunRows
from pytest_msprobe.diagnosis.from_rows import with_gaps
from pytest_msprobe.verdicts import EXPLAINED, OutputRow, RowCounts, StepPosition, VerdictRow


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
    facts = {"passing": "rounding", **facts}
    found = RunRows(RunFacts(suite="precheck", arguments=("--msprobe-dump=step0",), **facts), RowCounts())
    for each in rows:
        found.counts.count(each)
        if not each.is_plain_pass:
            found.add(each)
    return found


def test_layers_and_directions_and_ranks_are_one_cause() -> None:
    found = rows_of(
        *(
            row(f"Mint.gelu.{layer}", rank=rank, order=layer, cell=f"blocks.{layer}.Mlp", ratio=3.0 + layer, part=part)
            for rank in (0, 1)
            for layer in range(4)
            for part in ("forward", "backward")
        )
    ).diagnosis()
    (cause,) = found.at_fault
    assert cause.name == "Mint.gelu in 4 layers (0 to 3), forward and backward"
    assert (cause.count, cause.ranks, cause.steps) == (16, (0, 1), (0,))
    assert (cause.record, cause.id) == ("Mint.gelu.0.forward", "step0/rank0/dump.json::Mint.gelu.0::forward")
    assert (cause.evidence["ratio"], cause.how) == (6.0, "6 x its tolerance")
    assert found.headline == "Fault: Mint.gelu in 4 layers (0 to 3), 6 x its tolerance, ranks 0 to 1, net.py:7"
    assert found.next[0].arguments == ("pytest", "--msprobe-dump=step0", "-k", "Mint.gelu.0", "-v")


def test_what_is_hardly_beyond_its_tolerance_does_not_stand_for_what_is_far_beyond() -> None:
    """A kernel that is a little inaccurate everywhere, and one call of it that is wrong."""
    found = rows_of(
        row("Mint.silu.0", ratio=1.3), row("Mint.silu.1", order=2, ratio=187.0), row("Mint.silu.2", order=4, ratio=5.0)
    ).diagnosis()
    assert [(each.record, each.count) for each in found.at_fault] == [
        ("Mint.silu.1.forward", 2),
        ("Mint.silu.0.forward", 1),
    ]
    assert found.next[0].arguments[-2] == "Mint.silu.1"


def test_the_worst_cause_is_first_and_what_could_not_be_compared_last() -> None:
    found = rows_of(
        row("Mint.a.0", status="error", message="cannot be read"),
        row("Mint.b.0", ratio=2.0),
        row("Mint.c.0", ratio=9.0),
    ).diagnosis()
    assert [(each.record, each.kind) for each in found.at_fault] == [
        ("Mint.c.0.forward", "wrong"),
        ("Mint.b.0.forward", "wrong"),
        ("Mint.a.0.forward", "error"),
    ]


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        ((), "not_judged"),
        ((row(status="skip", message="no benchmark"),), "not_judged"),
        ((row(),), "rounding"),
        ((row(), row("Mint.b.0", status="skip", message="no benchmark")), "unaccounted"),
        ((row(), row("Mint.b.0", ratio=3.0, outcome="xfailed")), "unaccounted"),
        ((row(), row("Mint.b.0", ratio=3.0)), "fault"),
    ],
)
def test_passes_are_worth_what_they_cover(rows: tuple[VerdictRow, ...], outcome: str) -> None:
    found = rows_of(*rows).diagnosis()
    assert found.outcome == outcome
    assert sum(found.counts.values()) == len(rows)


def test_what_rounding_explains_is_no_fault_and_no_praise() -> None:
    output = OutputRow("output.0", "Float64", "Float32", (2,), "error", "off", rounding=EXPLAINED)
    diagnosis = rows_of(row(), replace(row("Mint.b.0", ratio=1.0), outputs=(output,))).diagnosis()
    assert (diagnosis.outcome, diagnosis.at_fault) == ("unaccounted", ())
    assert "--msprobe-standard=backward-error" in diagnosis.cannot_say[0].why


def test_gaps_take_praise_back() -> None:
    found = with_gaps(rows_of(row()).diagnosis(), [CannotSay("rank3/dump.json", "is torn")])
    assert (found.outcome, found.cannot_say[0].what) == ("unaccounted", "rank3/dump.json")
    assert found.headline.startswith("Undecided: ")
    wrong = rows_of(row(ratio=3.0)).diagnosis()
    assert with_gaps(wrong, [CannotSay("x", "y")]).headline == wrong.headline


def test_the_command_that_repeats_leaves_files_and_workers_out() -> None:
    facts = RunFacts(
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
