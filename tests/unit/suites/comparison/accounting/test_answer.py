"""The words on one pair of dumps, from accounts and faults that are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from written_differences import differences

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.answers.words import listed_numbers, readable
from pytest_msprobe.suites.comparison.accounting.account import (
    Account,
    Kind,
    OutputAccount,
    Step,
    ValueKey,
    with_growth,
)
from pytest_msprobe.suites.comparison.accounting.answer import Answer, answers_in_words
from pytest_msprobe.suites.comparison.accounting.arguments import listed_differences
from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.accounting.diagnosis import Outcome, RunDiagnosis


def key(path: str, distance: float | None = 0.5, *, shape: tuple[int, ...] = (4,), is_beyond: bool = True) -> ValueKey:
    contents = ("a", "a") if distance == 0 else ("a", "b")
    return ValueKey(path, path.startswith("output"), *contents, distance, shape, is_beyond and distance != 0)


def step(
    record: str,
    place: int,
    *keys: ValueKey,
    kind: Kind = "inherited",
    cells: Sequence[str] = (),
    definition: str = "",
    side: str = "both",
    reason: str = "",
) -> Step:
    places = {
        "place": -1 if side == "golden" else place,
        "partner_place": -1 if side == "target" else place,
        "partner": record if side == "both" else "",
    }
    account = Account(kind, keys=keys, definition=differences(definition), reason=reason, **places)  # type: ignore[arg-type]
    return Step(Operation.of(record, place), account, tuple(cells), "net.py:7")


def fault(at: Step, sentence: str, kind: str = "born", *, size: float = 0.1, reached: Sequence[Step] = ()) -> Fault:
    return Fault(at, kind, "target", "output.0", sentence, "", size, records=[at.record], reached=list(reached))  # type: ignore[arg-type]


def answer(
    steps: Sequence[Step],
    faults: Sequence[Fault] = (),
    *,
    unknown: Sequence[Fault] = (),
    unexplained: Sequence[Step] = (),
    before: Mapping[int, Outcome] | None = None,
) -> Answer:
    found = RunDiagnosis(tuple(steps), tuple(faults), tuple(unknown), frozenset(), (), tuple(unexplained))
    return Answer.of(found, before)


def test_the_same_argument_in_every_layer_is_one_sentence() -> None:
    definition = "approximate 'tanh' against 'none'"
    steps = [
        step(f"Functional.gelu.{n}.forward", n, key("output.0"), cells=(f"blocks.{n}.mlp.GELU",), definition=definition)
        for n in range(12)
    ]
    faults = [fault(one, f"called otherwise: {definition}", "defined") for one in steps]
    for one in faults:
        one.records.append(one.step.record.replace("forward", "backward"))
    text = answer(steps, faults).text
    assert text.startswith(
        "At fault: Functional.gelu in 12 layers (0 to 11), forward and backward: called otherwise: approximate 'tanh' "
        "against 'none', called from net.py:7."
    )


def test_the_first_figure_stands_for_one_cause_and_other_arguments_are_another_cause() -> None:
    steps = [step(f"Mint.exp.{n}.forward", n, key("output.0")) for n in range(3)]
    faults = [
        fault(one, f"arises in the target: The output is {1.03 + n / 1000} times the benchmark as a whole.")
        for n, one in enumerate(steps)
    ]
    text = answer(steps, faults).text
    assert "Mint.exp in 3 calls (0 to 2), forward: arises in the target: The output is 1.03 times the" in text
    other = [
        step(f"Mint.norm.{n}.forward", n, key("output.0"), definition=f"eps 1e-0{n} against 0.1") for n in range(3)
    ]
    text = answer(
        other,
        [fault(one, f"called otherwise: {listed_differences(one.account.definition)}", "defined") for one in other],
    ).text
    assert "Mint.norm.0.forward: called otherwise: eps 1e-00 against 0.1" in text
    assert "Mint.norm.1.forward: called otherwise: eps 1e-01 against 0.1" in text


def test_a_swap_in_every_layer_is_one_sentence() -> None:
    steps = [step(f"Torch.matmul.{n}.forward", n, key("input.0")) for n in range(2)]
    faults = [
        fault(one, f"input.0 is unbind.{n}.output.1 in the target, unbind.{n}.output.0 in the golden run", "rewired")
        for n, one in enumerate(steps)
    ]
    expected = "input.0 is unbind.0.output.1 in the target, unbind.0.output.0 in the golden run"
    assert f"Torch.matmul in 2 calls (0 to 1), forward: {expected}" in answer(steps, faults).text


def test_one_factor_in_all_that_inherits_is_said_once() -> None:
    first = step("Mint.mul.0.forward", 0, key("output.0", 0.03))
    rest = [step(f"Mint.add.{n}.forward", n + 1, key("input.0", 0.03), key("output.0", 0.03)) for n in range(20)]
    text = answer([first, *rest], [fault(first, "arises in the target", reached=rest)]).text
    assert "; 20 operations inherit it, all 20 outputs off by 3 % of their size." in text
    rest[-1] = step("Mint.add.19.forward", 20, key("output.0", 0.04))
    assert "of their size" not in answer([first, *rest], [fault(first, "arises in the target", reached=rest)]).text


def test_parameters_are_counted_as_what_they_are() -> None:
    steps = [step(f"Mint.linear.{n}.forward", n, key("input.1")) for n in range(4)]
    faults = [fault(one, "parameter differs by 0.5 before any operation", "parameter") for one in steps]
    assert "At fault: 4 parameters (Mint.linear.0.forward.output.0, " in answer(steps, faults).text
    faults[3] = fault(steps[3], "a value of the batch differs before any operation", "batch")
    assert "and 1 other value differ before any operation" in answer(steps, faults).text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scale 0.08838834764831845 against 0.125", "scale 0.08839 against 0.125"),
        ("Max is -3.4028234663852886e+38.", "Max is -3.403e+38."),
        ("eps 1.0000001 against 1.0000002", "eps 1.0000001 against 1.0000002"),
        ("net.py:7, Mint.exp.0.forward.output.0, 512341 elements, 1e-05", None),
        ("mode '2.50000' against 2.0.1234567", None),
    ],
)
def test_figures_have_four_digits_or_as_many_as_tell_them_apart(text: str, expected: str | None) -> None:
    assert readable(text) == (expected or text)


def test_ranges() -> None:
    assert listed_numbers([3, 0, 1, 7, 2]) == "0 to 3, 7"


def test_the_last_output_is_the_loss_and_not_the_optimizers() -> None:
    steps = [
        step("Mint.linear.0.forward", 0, key("output.0", 0.1)),
        step("Mint.mean.0.forward", 1, key("output.0", 0.2, shape=())),
        step("Mint.mean.0.backward", 2, key("output.0", 0.3)),
        step("Mint.exp.0.forward", 3, key("output.0", 0.4)),  # computed again behind a checkpoint
        step("Mint.linear.0.backward", 4, key("output.0", 0.5)),
        step("Torch._foreach_norm.0.forward", 5, key("output.0", 0.6, shape=())),
    ]
    assert "The last forward output, Mint.mean.0.forward.output.0, differs by 0.2." in answer(steps).text


@pytest.mark.parametrize(
    ("before", "lead"),
    [
        ({0: "fault"}, "Step 0 differs already: read its answer first. At fault: "),
        ({0: "equal", 1: "unaccounted"}, "Step 1 differs already: read its answer first. At fault: "),
        ({0: "rounding"}, "Step 0 differs already, by rounding: "),
        ({0: "equal"}, "At fault: "),
    ],
)
def test_an_earlier_step_that_differs_is_said_first(before: dict[int, Outcome], lead: str) -> None:
    one = step("Mint.exp.0.forward", 0, key("output.0"))
    assert answer([one], [fault(one, "born")], before=before).text.startswith(lead)
    assert answer([one], before={0: "rounding"}).text.startswith("No operation is")


@pytest.mark.parametrize(("side", "words"), [("target", "The golden dump ends 5"), ("golden", "The target ends 5")])
def test_a_dump_that_ends_before_the_other_is_said(side: str, words: str) -> None:
    steps = [step(f"Mint.exp.{n}.forward", n, key("output.0", 0.0), kind="equal") for n in range(4)]
    steps += [
        step(f"Mint.log.{n}.forward", n + 4, key("output.0", None), kind="unmatched", side=side) for n in range(5)
    ]
    assert f"{words} records before" in answer(steps).text
    assert "ends" not in answer(steps[:5]).text


def test_what_is_not_known_is_named_behind() -> None:
    first = step("Mint.exp.0.forward", 0, key("input.1"), key("output.0"))
    layer = step(
        "Module.net.Linear.forward.0", 1, key("input.0"), key("output.0"), kind="unaccounted", reason="level L0."
    )
    given = Fault(first, "unrecorded", "both", "input.1", "")
    text = answer([first, layer], unknown=[given], unexplained=[layer]).text
    assert text.endswith(
        "Cannot be accounted for: Module.net.Linear.forward.0 (level L0). It is not known what made "
        "Mint.exp.0.forward.input.1."
    )
    assert "For 2 inputs it is not known what made them: first Mint.exp.0.forward.input.1." in (
        answer([first], unknown=[given, given]).text
    )


def test_what_is_at_fault_is_where_the_runs_part() -> None:
    steps = [step("Mint.exp.0.forward", 0, key("output.0")), step("Mint.log.0.forward", 1, key("output.0"))]
    found = answer(
        steps, [fault(steps[1], "input.0 is another output.", "rewired"), fault(steps[0], "born with 0.123456789.")]
    )
    assert found.first is not None
    assert (found.first.record, found.first.value, found.first.sentence) == (
        "Mint.exp.0.forward",
        "output.0",
        "born with 0.1235",
    )
    # The row of what is born says so; that of a record whose input is at fault does not.
    assert found.sentences == {"Mint.log.0.forward": "input.0 is another output."}
    assert Answer.from_wire(found.to_wire()) == found


def test_ranks_with_one_cause_share_a_sentence() -> None:
    one, two = step("Mint.exp.0.forward", 0, key("output.0")), step("Mint.exp.0.forward", 0, key("output.0", 0.7))
    answers = {f"/run/step0/rank{n}/dump.json": answer([one], [fault(one, f"off by 0.{n + 1}")]) for n in range(3)}
    answers["/run/step0/rank3/dump.json"] = answer([two], [fault(two, "frozen", "rewired")])
    found = [line.partition(": At fault")[0] for line in answers_in_words(answers)]
    assert found == ["step 0, the same in ranks 0 to 2; rank 0", "step 0 rank 3"]
    folders = {str(Path(f"/{name}/dump.json")): answers["/run/step0/rank3/dump.json"] for name in "ab"}
    assert [line.partition(":")[0] for line in answers_in_words(folders)] == ["/a/dump.json", "/b/dump.json"]


def test_growth_that_means_nothing_is_not_told() -> None:
    output = OutputAccount("output.0", 0.1, {"inherited": 0.1}, {"inherited": 1.0})
    assert with_growth(output, 1e-5).growth == pytest.approx(1e4)
    assert with_growth(output, 1e-39).growth is None
