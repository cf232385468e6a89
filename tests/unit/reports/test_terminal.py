"""The summary of a run: what comes first, what is left out by verbosity, colours."""

from __future__ import annotations

from dataclasses import replace

from fakes.suite import row

from pytest_msprobe.reports.terminal import VerdictCounts
from pytest_msprobe.verdicts import EXPLAINED, OutputRow, StepPosition, VerdictRow


def failed(call: str, order: int, *, explained: bool = False, step: int = 0) -> VerdictRow:
    """A failure at a place of the step."""
    output = OutputRow(
        "output.0", "Float32", "Float32", "(2,)", status="error", rounding=EXPLAINED if explained else "not explained"
    )
    place = StepPosition(order=order, step=step, source=f"train.py:{order}")
    return replace(row(), call=call, status="error", outcome="failed", outputs=(output,), place=place)


def summary(*rows: VerdictRow, verbosity: int = 0) -> list[str]:
    counts = VerdictCounts()
    for item in rows:
        counts.add(item.call, item)
    return [line.text for line in counts.lines(verbosity)]


def test_the_first_failure_in_execution_order_is_named() -> None:
    lines = summary(failed("Mint.exp.0", 7), failed("Mint.add.0", 3), failed("Mint.mul.0", 5))
    assert "first in execution order: Mint.add.0 forward, train.py:3" in lines


def test_steps_come_before_places_in_a_step() -> None:
    lines = summary(failed("Mint.exp.0", 7, step=1), failed("Mint.add.0", 3, step=2))
    assert "first in execution order: Mint.exp.0 forward, train.py:7" in lines


def test_what_rounding_explains_comes_after_the_others() -> None:
    lines = summary(failed("Mint.exp.0", 1, explained=True), failed("Mint.add.0", 3))
    assert "first in execution order: Mint.add.0 forward, train.py:3" in lines
    worst = lines[lines.index("worst records:") + 2 :]
    assert [line.split()[0] for line in worst] == ["Mint.add.0", "Mint.exp.0"]


def test_one_failure_needs_no_first() -> None:
    assert not [line for line in summary(failed("Mint.exp.0", 1)) if line.startswith("first in")]


def test_verbosity_decides_how_much_is_shown() -> None:
    rows = [failed(f"Mint.a{number}.0", number) for number in range(60)]
    skips = [replace(row(), status="skip", outcome="skipped", message=f"reason {number}") for number in range(20)]
    for verbosity, worst, reasons in ((-1, 0, 0), (0, 10, 10), (1, 50, 20)):
        lines = summary(*rows, *skips, verbosity=verbosity)
        assert len([line for line in lines if line.startswith("  Mint.a")]) == worst
        assert len([line for line in lines if line.endswith(tuple(f"reason {n}" for n in range(20)))]) == reasons
        assert "60 failed, 20 skipped" in lines[0]


def test_colours_follow_the_outcome() -> None:
    def colour(*rows: VerdictRow) -> str:
        counts = VerdictCounts()
        for item in rows:
            counts.add(item.call, item)
        return next(counts.lines()).colour

    skipped = replace(row(), status="skip", outcome="skipped", message="why")
    assert (colour(row(), skipped), colour(skipped), colour(row(), failed("Mint.a.0", 0))) == ("green", "yellow", "red")
