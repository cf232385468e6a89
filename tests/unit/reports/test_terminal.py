"""The summary of a run: what comes first, what is left out by verbosity, colours."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.suite import row

from pytest_msprobe.reports.terminal import VerdictCounts, shortened, wrapped
from pytest_msprobe.suites.precheck.suite import PrecheckSuite
from pytest_msprobe.verdicts import EXPLAINED, OUTCOMES, OutputRow, Status, StepPosition, VerdictRow


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


def measured(call: str, status: Status, **figures: float) -> VerdictRow:
    """A record with figures of one output."""
    output = OutputRow("output.0", "Float32", "Float32", (2, 16, 32), status, figures=figures)
    return replace(row(), call=call, status=status, outcome=OUTCOMES[status], outputs=(output,))


def table_of(*rows: VerdictRow, width: int) -> list[str]:
    counts = VerdictCounts(suite=PrecheckSuite)
    for item in rows:
        counts.add(item.call, item)
    lines = list(counts.lines(width=width))
    titles = next(place for place, line in enumerate(lines) if "error/tol" in line.text)
    return [line.text for line in lines[titles:] if line.is_whole]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_tables_fit_the_terminal_and_begin_with_the_figure_that_decides(width: int) -> None:
    names = ("Mint.matmul.0", f"rank0/Module.{'blocks.0.' * 12}narrow.Linear.parameters_grad.0")
    lines = table_of(
        *(measured(name, "error", ratio=684.25, max_abs=0.0684, cosine=0.99995) for name in names), width=width
    )
    assert max(map(len, lines)) <= width
    assert lines[0].split()[:2] == ["error/tol", "cosine"][: len(lines[0].split())]
    assert all("684" in line for line in lines[1:])
    assert lines[1].split()[0] == "Mint.matmul.0"
    assert lines[2].split()[0].endswith("grad.0")
    assert ("output.0 Float32 [2, 16, 32]" in lines[1]) is (width >= 120)


def test_a_pass_that_uses_one_unit_up_is_called_no_near_failure() -> None:
    counts = VerdictCounts(suite=PrecheckSuite)
    counts.add("Mint.rsqrt.0", measured("Mint.rsqrt.0", "pass", ratio=1.0, max_ulp=1.0))
    assert any("no near failure" in line.text for line in counts.lines(1))
    assert not any("no near failure" in line.text for line in counts.lines())
    counts.add("Mint.rsqrt.1", measured("Mint.rsqrt.1", "error", ratio=1.5, max_ulp=2.0))
    assert not any("no near failure" in line.text for line in counts.lines(1))


def test_a_run_in_which_nothing_differs_has_no_table() -> None:
    counts = VerdictCounts(suite=PrecheckSuite)
    counts.add("Mint.rsqrt.0", measured("Mint.rsqrt.0", "pass", ratio=0.0, max_ulp=0.0))
    assert not any(line.is_whole for line in counts.lines(1))


def test_what_the_answer_says_is_not_said_again() -> None:
    counts = VerdictCounts()
    for item in (failed("Mint.exp.0", 7), failed("Mint.add.0", 3)):
        counts.add(item.call, item)
    assert any(line.text.startswith("first in") for line in counts.lines())
    assert not any(line.text.startswith("first in") for line in counts.lines(record="Mint.add.0.forward"))


def test_what_was_not_judged_has_no_benchmark() -> None:
    skipped = replace(row(), status="skip", outcome="skipped", message="why", bench="float64 CPU")
    judged = [replace(row(), bench="float64 CPU"), replace(failed("Mint.exp.0", 1), bench="float64 CPU")]
    assert "benchmark float64 CPU: 2 judged" in summary(*judged, skipped)
    assert "benchmark torch CPU float64: 1 judged" in summary(*judged, replace(row(), bench="torch CPU float64"))
    assert not [line for line in summary(replace(row(), bench="torch CPU float64")) if line.startswith("benchmark")]
    assert not [line for line in summary(skipped) if line.startswith("benchmark")]


def test_text_is_wrapped_between_words_and_keeps_what_is_copied_whole() -> None:
    command = f"/data/{'long' * 30}/dump.json"
    lines = wrapped(f"  not judged: look at {command} and at the other one, then again at both of them", 60)
    assert command in lines[1] or command in lines[0].split()
    assert all(len(line) <= 60 for line in lines if command not in line)
    assert lines[0].startswith("  not judged")
    assert all(line.startswith("    ") for line in lines[1:])
    assert wrapped("short", 60) == ["short"]


def test_a_long_name_keeps_its_ends() -> None:
    assert shortened("Mint.exp.0", 20) == "Mint.exp.0"
    found = shortened("Module." + "blocks.0." * 20 + "parameters_grad.0", 40)
    assert len(found) <= 40
    assert found.startswith("Module.blocks")
    assert found.endswith("parameters_grad.0"[-17:])
