"""What is to blame, from the accounts of the records alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.suites.comparison.accounting.account import Account, Kind, OutputAccount, Step, ValueKey
from pytest_msprobe.suites.comparison.accounting.faults import Fault, FaultFinder
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow

BORN = OutputAccount("output.0", 0.1, {}, {"born_target": 1.0}, None, {"born_target": "born in the target: wrong."})


def value(path: str, content: str, *, trains: tuple[str, str] = ("", ""), is_integer: bool = False) -> ValueKey:
    """A value called `a` on both sides, or `a|b` on target and golden side."""
    target, _, golden = content.partition("|")
    golden = golden if "|" in content else target
    distance = 0.0 if target == golden else 0.5
    return ValueKey(path, path.startswith("output"), target, golden, distance, (4,), distance > 0, is_integer, trains)


class Run:
    """Records of a step, in their order."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def call(
        self,
        record: str,
        inputs: Sequence[str | ValueKey],
        output: str | Sequence[str],
        *,
        kind: Kind = "inherited",
        blamed: tuple[OutputAccount, ...] = (),
        side: str = "both",
        partner: str = "",
    ) -> Run:
        place = len(self.steps)
        given = [key if isinstance(key, ValueKey) else value(f"input.{i}", key) for i, key in enumerate(inputs)]
        made = [value(f"output.{i}", key) for i, key in enumerate([output] if isinstance(output, str) else output)]
        account = Account(
            kind,
            outputs=blamed,
            keys=(*given, *made),
            partner=(partner or record) if side == "both" else "",
            place=-1 if side == "golden" else place,
            partner_place=-1 if side == "target" else place,
        )
        self.steps.append(Step(Operation.of(record, place), account))
        return self

    def faults(self, *, is_wrong_sum: bool = False) -> list[Fault]:
        return FaultFinder(DataFlow(self.steps), lambda step, key, sources: is_wrong_sum).find()


def test_an_operation_at_fault_and_what_inherits_it() -> None:
    run = Run().call("Mint.exp.0.forward", ["a"], "b|B", kind="fault", blamed=(BORN,))
    run.call("Mint.exp.1.forward", ["b|B"], "c|C").call("Mint.exp.2.forward", ["a"], "d", kind="equal")
    (fault,) = run.call("Mint.exp.3.forward", ["c|C"], "e|E").faults()
    assert (fault.kind, fault.side, fault.records) == ("born", "target", ["Mint.exp.0.forward"])
    assert [step.record for step in fault.reached] == ["Mint.exp.1.forward", "Mint.exp.3.forward"]


def test_forward_and_backward_of_one_call_are_one_fault() -> None:
    run = Run().call("Mint.exp.0.forward", ["a"], "b|B", kind="fault", blamed=(BORN,))
    run.call("Mint.exp.0.backward", ["g"], "h|H", kind="fault", blamed=(BORN,))
    (fault,) = run.faults()
    assert fault.records == ["Mint.exp.0.forward", "Mint.exp.0.backward"]


def test_independent_faults_are_listed_by_their_reach() -> None:
    run = Run().call("Mint.exp.0.forward", ["a"], "b|B", kind="fault", blamed=(BORN,))
    run.call("Mint.log.0.forward", ["x"], "y|Y", kind="fault", blamed=(BORN,))
    run.call("Mint.exp.1.forward", ["y|Y"], "z|Z")
    assert [fault.records[0] for fault in run.faults()] == ["Mint.log.0.forward", "Mint.exp.0.forward"]


def test_a_weight_that_differs_is_a_parameter_with_its_name_and_named_once() -> None:
    weight = value("input.1", "w|W", trains=("True", "True"))
    run = Run().call("Module.blocks.0.up.Linear.forward.0", [value("parameters.weight", "w|W")], "b|B")
    run.call("Mint.linear.0.forward", ["a", weight], "b|B").call("Mint.linear.1.forward", ["b|B", weight], "c|C")
    (fault,) = run.faults()
    assert (fault.kind, fault.name, fault.value) == ("parameter", "blocks.0.up.weight", "input.1")
    assert fault.records == ["Mint.linear.0.forward"]
    assert [step.record for step in fault.reached] == ["Mint.linear.0.forward", "Mint.linear.1.forward"]


def test_a_parameter_that_is_frozen_on_one_side_is_named_though_its_values_agree() -> None:
    weight = value("input.1", "w", trains=("False", "True"))
    (fault,) = Run().call("Mint.linear.0.forward", ["a", weight], "b", kind="equal").faults()
    assert fault.kind == "parameter"
    assert "requires a gradient on one side only" in fault.sentence


def test_what_a_communication_call_received_came_from_another_rank_when_this_one_gave_the_same() -> None:
    run = Run().call("Distributed.all_reduce.0.forward", ["a"], "b|B", kind="unaccounted")
    (fault,) = run.call("Mint.exp.0.forward", ["b|B"], "c|C").faults()
    assert (fault.kind, fault.value) == ("another_rank", "output.0")
    assert [step.record for step in fault.reached] == ["Mint.exp.0.forward"]


def test_a_communication_call_passes_on_what_this_rank_gave() -> None:
    run = Run().call("Mint.exp.0.forward", ["a"], "b|B", kind="fault", blamed=(BORN,))
    (fault,) = run.call("Distributed.all_reduce.0.forward", ["b|B"], "c|C", kind="unaccounted").faults()
    assert (fault.kind, fault.records) == ("born", ["Mint.exp.0.forward"])


def test_integers_that_no_record_made_are_the_batch() -> None:
    words = value("input.0", "i|I", is_integer=True)
    (fault,) = Run().call("Mint.embedding.0.forward", [words, "w"], "b|B").faults()
    assert fault.kind == "batch"


@pytest.mark.parametrize("side", ["target", "golden"])
def test_a_call_that_only_one_side_has_is_at_fault_and_the_first_of_a_chain_is_named(side: str) -> None:
    run = Run().call("Mint.matmul.0.forward", ["a"], "b", kind="equal")
    lone = ("b", "c", "d") if side == "target" else ("|b", "|c", "|d")
    run.call("Mint.half.0.forward", [lone[0]], lone[1], kind="unmatched", side=side)
    run.call("Mint.float.0.forward", [lone[1]], lone[2], kind="unmatched", side=side)
    run.call("Mint.exp.0.forward", ["d|b" if side == "target" else "b|d"], "e|E")
    (fault,) = run.faults()
    assert (fault.kind, fault.side, fault.records) == ("only_one_side", side, ["Mint.half.0.forward"])


def test_a_call_that_only_one_side_has_and_that_changes_nothing_is_no_fault() -> None:
    run = Run().call("Mint.matmul.0.forward", ["a"], "b", kind="equal")
    run.call("Mint.reshape.0.forward", ["b"], "b", kind="unmatched", side="target")
    assert run.call("Mint.exp.0.forward", ["b"], "c", kind="equal").faults() == []


def gradients(last: str) -> Run:
    """x is used twice; the gradient that enters its maker is the sum of both."""
    run = Run().call("Mint.exp.0.forward", ["a"], "x", kind="equal")
    run.call("Mint.log.0.forward", ["x"], "y", kind="equal").call("Mint.sin.0.forward", ["x"], "z", kind="equal")
    run.call("Mint.sin.0.backward", ["p"], "q", kind="equal")
    run.call("Mint.log.0.backward", ["r"], "s" if last == "u|U" else "s|S", kind="equal")
    return run.call("Mint.exp.0.backward", [last], "v|V")


def test_a_gradient_that_is_not_the_sum_of_its_uses_is_at_fault_when_the_values_say_so() -> None:
    (fault,) = gradients("u|U").faults(is_wrong_sum=True)
    assert (fault.kind, fault.value) == ("gradient", "input.0")
    assert "Mint.log.0.backward and Mint.sin.0.backward" in fault.sentence


def test_a_gradient_inherits_from_the_gradients_of_its_uses() -> None:
    run = gradients("t|T")
    run.steps[4] = Step(
        run.steps[4].operation,
        Account(
            "fault",
            outputs=(BORN,),
            keys=run.steps[4].account.keys,
            partner="Mint.log.0.backward",
            place=4,
            partner_place=4,
        ),
    )
    (fault,) = run.faults(is_wrong_sum=True)
    assert fault.records == ["Mint.log.0.backward"]
    assert [step.record for step in fault.reached] == ["Mint.exp.0.backward"]


def test_what_no_record_made_is_blamed_only_where_nothing_else_is() -> None:
    run = Run().call("Mint.matmul.0.forward", ["a"], "b", kind="equal")
    run.call("Mint.exp.0.forward", ["b|B"], "c|C")
    (fault,) = run.faults()
    assert (fault.kind, fault.records) == ("unrecorded", ["Mint.exp.0.forward"])
    other = Run().call("Mint.tan.0.forward", ["q"], "r|R", kind="fault", blamed=(BORN,))
    other.call("Mint.matmul.0.forward", ["a"], "b", kind="equal").call("Mint.exp.0.forward", ["b|B"], "c|C")
    assert [fault.kind for fault in other.faults()] == ["born"]


def test_in_a_part_of_a_run_a_value_may_come_from_a_record_that_was_left_out() -> None:
    run = Run().call("Mint.exp.0.forward", ["b|B"], "c|C")
    causes = FaultFinder(DataFlow(run.steps), lambda step, key, sources: False, is_whole=False)
    assert causes.find() == []
    assert len(causes.unknown) == 1


@pytest.mark.parametrize(("partner", "blamed"), [("Mint.exp.0.forward", ["Mint.mul.0"]), ("Torch.exp.0.forward", [])])
def test_a_call_of_one_framework_is_not_to_blame_while_the_values_agree(partner: str, blamed: list[str]) -> None:
    near = ValueKey("input.0", False, "b", "B", 1e-7, (4,))
    run = Run().call("Mint.mul.0.forward", ["a"], "b", kind="unmatched", side="target")
    run.call("Mint.exp.0.forward", [near], "c|C", kind="rounding", partner=partner)
    assert [fault.step.operation.call for fault in run.faults()] == blamed


def test_a_call_of_one_framework_that_makes_another_value_is_to_blame() -> None:
    run = Run().call("Mint.mul.0.forward", ["a"], "b", kind="unmatched", side="target")
    run.call("Mint.exp.0.forward", ["b|B"], "c|C", partner="Torch.exp.0.forward")
    assert [fault.kind for fault in run.faults()] == ["only_one_side"]
