"""The answer on one pair of dumps, from accounts and faults that are made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from written_differences import differences

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.answers import Answer, RowFacts, RunRows
from pytest_msprobe.suites.comparison.accounting.account import (
    Account,
    AccountStep,
    Kind,
    OutputAccount,
    ValueKey,
    with_growth,
)
from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis
from pytest_msprobe.suites.comparison.accounting.run_answer import open_keys, run_answer
from pytest_msprobe.suites.comparison.table import advice
from pytest_msprobe.verdicts import RowCounts


def key(path: str, distance: float | None = 0.5, *, is_beyond: bool = True) -> ValueKey:
    contents = ("a", "a") if distance == 0 else ("a", "b")
    return ValueKey(path, path.startswith("output"), *contents, distance, (4,), is_beyond and distance != 0)


def step(
    record: str,
    place: int,
    *keys: ValueKey,
    kind: Kind = "inherited",
    cells: Sequence[str] = (),
    definition: str = "",
    reason: str = "",
) -> AccountStep:
    account = Account(
        kind,
        keys=keys,
        definition=differences(definition),
        reason=reason,
        place=place,
        partner_place=place,
        partner=record,
    )
    return AccountStep(Operation.of(record, place), account, tuple(cells), "net.py:7")


def fault(at: AccountStep, kind: str = "born", *, size: float = 0.1, value: str = "output.0") -> Fault:
    return Fault(at, kind, "target", value, "off by 0.123456789.", "", size, records=[at.record])  # type: ignore[arg-type]


def answer(
    steps: Sequence[AccountStep],
    faults: Sequence[Fault] = (),
    *,
    unknown: Sequence[Fault] = (),
    unexplained: Sequence[AccountStep] = (),
) -> Answer:
    found = RunDiagnosis(tuple(faults), tuple(unknown), tuple(unexplained), frozenset(), (), tuple(steps))
    counts = RowCounts(Counter(passed=len(steps)))
    return run_answer(RunRows(RowFacts(item_noun="operations"), counts), {"/run/dump.json": found})


def test_the_same_argument_in_every_layer_is_one_cause() -> None:
    definition = "approximate 'tanh' against 'none'"
    steps = [
        step(f"Functional.gelu.{n}.forward", n, key("output.0"), cells=(f"blocks.{n}.mlp.GELU",), definition=definition)
        for n in range(12)
    ]
    faults = [fault(one, "defined") for one in steps]
    for one in faults:
        one.records.append(one.step.record.replace("forward", "backward"))
    (found,) = answer(steps, faults).findings
    place = found.place
    assert (place.operation, place.calls, place.layers) == ("Functional.gelu", 12, tuple(range(12)))
    assert (place.directions, place.source, found.count) == (("forward", "backward"), "net.py:7", 24)
    assert [(one.name, one.target) for one in found.arguments] == [("approximate", "'tanh'")]


def test_other_arguments_are_another_cause() -> None:
    steps = [step(f"Mint.exp.{n}.forward", n, key("output.0")) for n in range(3)]
    (found,) = answer(steps, [fault(one, size=n / 10) for n, one in enumerate(steps)]).findings
    assert (found.place.numbers, found.size, found.detail) == ((0, 1, 2), 0.2, "off by 0.1235")
    other = [
        step(f"Mint.norm.{n}.forward", n, key("output.0"), definition=f"eps 1e-0{n} against 0.1") for n in range(3)
    ]
    assert len(answer(other, [fault(one, "defined") for one in other]).findings) == 3


def test_several_parameters_are_one_cause_and_a_batch_is_another() -> None:
    steps = [step(f"Mint.linear.{n}.forward", n, key("input.1")) for n in range(4)]
    faults = [fault(one, "parameter", value="input.1") for one in steps]
    assert [one.figures["names"] for one in answer(steps, faults).findings] == [4]
    faults[3] = fault(steps[3], "batch", value="input.1")
    assert [one.kind for one in answer(steps, faults).findings] == ["parameter", "batch"]


def test_what_is_not_known_is_named() -> None:
    first = step("Mint.exp.0.forward", 0, key("input.1"), key("output.0"))
    layer = step("Module.net.Linear.forward.0", 1, key("output.0"), kind="unaccounted", reason="level L0.")
    given = fault(first, "unrecorded", value="input.1")
    found = answer([first, layer], unknown=[given], unexplained=[layer])
    assert [(one.kind, one.place.record) for one in found.findings] == [
        ("unrecorded", "Mint.exp.0.forward"),
        ("unexplained", "Module.net.Linear.forward.0"),
    ]
    assert [(gap.kind, gap.what, gap.reason) for gap in found.open] == [
        ("uncomputed", "Module.net.Linear.forward.0", "level L0."),
        ("unmade", "Mint.exp.0.forward.input.1", ""),
    ]


def test_advice_is_the_answer() -> None:
    one = step("Mint.exp.0.forward", 0, key("output.0"))
    found = answer([one], [fault(one)])
    assert advice(found, found.findings[0], 3).splitlines() == [
        "Line: 3",
        "Suspect Nodes: Mint.exp.0.forward.output.0",
        "Expert Advice: Mint.exp.0 forward (wrong result, proved): off by 0.1235, at net.py:7",
    ]
    right = step("Mint.exp.0.forward", 0, key("output.0", 0.0), kind="equal")
    assert advice(answer([right]), None, 0).startswith("Line: NA\nSuspect Nodes: NA\nExpert Advice: Right: ")


def test_accepted_differences_make_no_run_a_failure() -> None:
    parameter = fault(step("Mint.exp.0.forward", 0, key("input.1", is_beyond=False)), "parameter", value="input.1")
    found = RunDiagnosis((parameter,), (), (), frozenset(), (), (parameter.step,))
    assert list(open_keys(found, ())) == ["parameter: Mint.exp.0.forward.input.1"]
    assert list(open_keys(found, ("bits",))) == []


def test_growth_that_means_nothing_is_not_told() -> None:
    output = OutputAccount("output.0", 0.1, {"inherited": 0.1}, {"inherited": 1.0})
    assert with_growth(output, 1e-5).growth == pytest.approx(1e4)
    assert with_growth(output, 1e-39).growth is None
