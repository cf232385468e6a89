"""What is to blame, from the accounts of the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs
from written_differences import differences

from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import Provenance
from pytest_msprobe.suites.comparison.accounting.account import Account, AccountStep, Kind, OutputAccount, ValueKey
from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.accounting.faults import FlowFaults, find_faults
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow

BORN = OutputAccount("output.0", 0.1, {}, {"born_target": 1.0}, None, {"born_target": "arises in the target: wrong."})


def value(path: str, content: str, **fields: Any) -> ValueKey:
    """A value called `a` on both sides, or `a|b` on target and golden side, where it is beyond its limit."""
    target, _, golden = content.partition("|")
    golden = golden if "|" in content else target
    distance = 0.0 if target == golden else 0.5
    key = ValueKey(path, path.startswith("output"), target, golden, distance, (4,), distance > 0)
    return structs.replace(key, **fields)


def near(path: str, content: str, **fields: Any) -> ValueKey:
    """A value that differs by less than its limit."""
    return value(path, content, distance=1e-8, is_beyond=False, **fields)


class Run:
    """Records of a step, in their order."""

    def __init__(self) -> None:
        self.steps: list[AccountStep] = []

    def call(
        self,
        record: str,
        inputs: Sequence[str | ValueKey],
        output: str | Sequence[str | ValueKey],
        *,
        kind: Kind = "inherited",
        blamed: tuple[OutputAccount, ...] = (),
        side: str = "both",
        partner: str = "",
        cells: tuple[str, ...] = (),
        **fields: Any,
    ) -> Run:
        place = len(self.steps)
        given = [key if isinstance(key, ValueKey) else value(f"input.{i}", key) for i, key in enumerate(inputs)]
        made = [
            key if isinstance(key, ValueKey) else value(f"output.{i}", key)
            for i, key in enumerate([output] if isinstance(output, str) else output)
        ]
        account = Account(
            kind,
            outputs=blamed,
            keys=(*given, *made),
            partner=(partner or record) if side == "both" else "",
            place=-1 if side == "golden" else place,
            partner_place=-1 if side == "target" else place,
            **fields,
        )
        self.steps.append(AccountStep(Operation.of(record, place), account, cells))
        return self

    def found(self, *, is_wrong_sum: bool | None = False) -> FlowFaults:
        return find_faults(DataFlow(self.steps), lambda step, key, sources: is_wrong_sum)

    def faults(self, *, is_wrong_sum: bool = False) -> list[Fault]:
        return list(self.found(is_wrong_sum=is_wrong_sum).faults)


def both(**fields: Any) -> tuple[Provenance, Provenance]:
    """What the collectors say of a value on both sides."""
    return Provenance(**fields), Provenance(**fields)


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
    run.steps[4] = AccountStep(
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
    shown = find_faults(DataFlow(run.steps), lambda step, key, sources: False, is_whole=False)
    assert not shown.faults
    assert len(shown.unknown) == 1


def test_an_input_from_another_output_of_one_maker_is_rewired() -> None:
    run = Run().call("Mint.split.0.forward", ["a"], ["q", "k"], kind="equal")
    run.call("Mint.matmul.0.forward", ["q|k", "k|q"], "s|S").call("Mint.softmax.0.forward", ["s|S"], "p|P")
    (fault,) = run.faults()
    assert (fault.kind, fault.value, fault.records) == ("rewired", "input.0", ["Mint.matmul.0.forward"])
    assert (
        "gets Mint.split.0.forward.output.0 in the target, Mint.split.0.forward.output.1 in the golden"
        in fault.sentence
    )
    assert [step.record for step in fault.reached] == ["Mint.matmul.0.forward", "Mint.softmax.0.forward"]


def test_one_value_in_the_place_of_another_is_one_cause_for_all_calls_that_get_it() -> None:
    run = (
        Run().call("Mint.exp.0.forward", ["a"], "x", kind="equal").call("Mint.log.0.forward", ["a"], "y", kind="equal")
    )
    run.call("Mint.sin.0.forward", ["x|y"], "s|S").call("Mint.cos.0.forward", ["x|y"], "c|C")
    (fault,) = run.faults()
    assert (fault.kind, fault.records) == ("rewired", ["Mint.sin.0.forward", "Mint.cos.0.forward"])


def test_another_parameter_is_rewired_and_one_that_differs_is_not() -> None:
    names = Provenance(leaf="up.weight"), Provenance(leaf="down.weight")
    (fault,) = Run().call("Mint.linear.0.forward", ["a", value("input.1", "w|v", origins=names)], "b|B").faults()
    assert fault.kind == "rewired"
    assert "gets parameter up.weight in the target, parameter down.weight in the golden run" in fault.sentence
    same = both(leaf="up.weight")
    (fault,) = Run().call("Mint.linear.0.forward", ["a", value("input.1", "w|v", origins=same)], "b|B").faults()
    assert (fault.kind, fault.name) == ("parameter", "up.weight")


def test_another_view_of_one_value_is_rewired() -> None:
    made = "Mint.exp.0.forward.output.0"
    views = Provenance(made_by=made, view="0,4 x 1"), Provenance(made_by=made, view="4,4 x 1")
    run = Run().call("Mint.exp.0.forward", ["a"], "x", kind="equal")
    (fault,) = run.call("Mint.sin.0.forward", [value("input.0", "l|r", origins=views)], "s|S").faults()
    assert fault.kind == "rewired"
    assert "another part or order of Mint.exp.0.forward.output.0" in fault.sentence


def test_a_value_that_was_changed_behind_the_collectors_back_is_unrecorded() -> None:
    written = both(made_by="Mint.exp.0.forward.output.0", is_changed=True)
    run = Run().call("Mint.exp.0.forward", ["a"], "x", kind="equal")
    (fault,) = run.call("Mint.sin.0.forward", [value("input.0", "y|Y", origins=written)], "s|S").faults()
    assert fault.kind == "unrecorded"
    assert "something that is no record changed it" in fault.sentence


def test_what_uninitialised_memory_holds_is_never_at_fault() -> None:
    origins = both(is_uninitialized=True)
    run = Run().call("Tensor.zero_.0.forward", [value("input.0", "u|U", origins=origins)], "z", kind="equal")
    shown = run.found()
    assert (shown.faults, shown.unknown, shown.unexplained) == ((), (), ())


def test_a_value_of_unknown_origin_is_at_fault_only_before_all_others() -> None:
    run = Run().call("Mint.sin.0.forward", ["x|X"], "s|S").call("Mint.cos.0.forward", ["y|Y"], "c|C")
    shown = run.found()
    assert [(fault.kind, fault.records) for fault in shown.faults] == [("unknown", ["Mint.sin.0.forward"])]
    assert [fault.records for fault in shown.unknown] == [["Mint.cos.0.forward"]]


def test_a_record_beyond_its_limit_that_could_not_be_computed_is_unexplained() -> None:
    run = Run().call("Mint.exp.0.forward", [near("input.0", "a|A")], [near("output.0", "b|B")], kind="rounding")
    run.call("Custom.mix.0.forward", [near("input.0", "b|B")], "c|C", kind="unaccounted")
    run.call("Mint.log.0.forward", ["c|C"], "d|D").call("Custom.mix.1.forward", ["d|D"], "e|E", kind="unaccounted")
    shown = run.found()
    assert not shown.faults
    assert [step.record for step in shown.unexplained] == ["Custom.mix.0.forward"]


def test_what_a_fault_reaches_is_not_unexplained() -> None:
    run = Run().call("Mint.exp.0.forward", ["a"], "b|B", kind="fault", blamed=(BORN,))
    shown = run.call("Custom.mix.0.forward", ["b|B"], "c|C", kind="unaccounted").found()
    assert [fault.kind for fault in shown.faults] == ["born"]
    assert not shown.unexplained


def test_the_limit_along_a_path_is_that_of_the_coarsest_dtype() -> None:
    """A float32 value behind one of bfloat16 may be off by what bfloat16 explains."""

    def outcome(coarse: float) -> list[str]:
        limits = {"limits": (coarse, coarse), "excess": 0.5}
        run = Run().call("Mint.exp.0.forward", ["a"], [near("output.0", "b|B", **limits)], kind="rounding")
        fine = {"limits": (1e-5, 1e-5), "excess": 100.0}
        run.call("Mint.float.0.forward", [near("input.0", "b|B", **limits)], [value("output.0", "c|C", **fine)])
        run.call(
            "Custom.mix.0.forward",
            [value("input.0", "c|C", **fine)],
            [value("output.0", "d|D", **fine)],
            kind="unaccounted",
        )
        return [step.record for step in run.found().unexplained]

    assert outcome(1e-2) == []
    assert outcome(1e-5) == ["Custom.mix.0.forward"]


@pytest.mark.parametrize(
    ("effect", "definition", "kinds"),
    [
        (1e-5, "scale 0.35355339059327373 against 0.3535533905932738", ["arguments"]),
        (1e-9, "scale 0.35355339059327373 against 0.3535533905932738", []),
        (1e-9, "kwargs.approximate 'tanh' against absent", ["arguments"]),
        (0.0, "kwargs.approximate 'none' against absent", []),
    ],
)
def test_another_argument_that_matters_less_than_the_limit_is_told(
    effect: float, definition: str, kinds: list[str]
) -> None:
    small = OutputAccount("output.0", 1e-4, {"defined": effect}, {"defined": 0.01})
    run = Run().call(
        "Mint.norm.0.forward",
        [near("input.0", "a|A")],
        [near("output.0", "b|B")],
        kind="rounding",
        blamed=(small,),
        definition=differences(definition),
    )
    assert [fault.kind for fault in run.faults()] == kinds


@pytest.mark.parametrize(
    ("definition", "kinds"),
    [
        ("momentum 0.3 against 0.1", ["arguments"]),
        ("input.1 5 against 3, input.3 2 against 1", ["arguments"]),
        ("dim -1 against 2", []),
        ("inplace True against False", []),
        ("scale 0.35355339059327373 against 0.3535533905932738", []),
    ],
)
def test_another_number_is_told_though_this_step_shows_no_effect(definition: str, kinds: list[str]) -> None:
    run = Run().call("Functional.batch_norm.0.forward", ["a"], "b", kind="equal", definition=differences(definition))
    run.call("Functional.batch_norm.1.forward", ["b", "m|M"], "c|C")
    assert [fault.kind for fault in run.faults()] == (kinds or ["unknown"])


def test_an_argument_behind_what_differs_may_be_computed_from_it() -> None:
    run = Run().call("Mint.exp.0.forward", ["a"], "b|B", kind="fault", blamed=(BORN,))
    run.call(
        "Functional.batch_norm.0.forward", ["c"], "d", kind="equal", definition=differences("momentum 0.3 against 0.1")
    )
    assert [fault.kind for fault in run.faults()] == ["born"]


@pytest.mark.parametrize(
    ("gives", "takes", "blamed"),
    [
        (((24, 25),), ((24, 25),), ["Mint.exp.0.forward"]),  # a count and what is sliced by it
        (((24, 25), (0.5, 0.75)), ((24, 25), (0.5, 0.75)), ["Mint.exp.0.forward"]),
        (((24, 25),), ((25, 24),), ["Mint.exp.0.forward", "Tensor.narrow.0.forward"]),
        (((24, 25),), ((24, 25), (1, 2)), ["Mint.exp.0.forward", "Tensor.narrow.0.forward"]),
        ((), (), ["Mint.exp.0.forward", "Tensor.narrow.0.forward"]),
    ],
)
def test_numbers_that_earlier_records_gave_are_inherited(gives: Any, takes: Any, blamed: list[str]) -> None:
    called = OutputAccount("output.0", 0.5, {"defined": 0.5}, {"defined": 1.0}, blamed={"defined": "called otherwise"})
    run = Run().call("Mint.exp.0.forward", ["a"], "b|B", kind="fault", blamed=(BORN,))
    run.call("Mint.sum.0.forward", ["b|B"], "n|N", gives=gives)
    run.call(
        "Tensor.narrow.0.forward",
        ["x"],
        "y|Y",
        kind="fault",
        blamed=(called,),
        definition=differences("input.1 24 against 25"),
        takes=takes,
    )
    faults = run.faults()
    assert [fault.records[0] for fault in faults] == blamed
    assert ("Tensor.narrow.0.forward" in [step.record for step in faults[0].reached]) == (len(blamed) == 1)


@pytest.mark.parametrize(
    ("gradient", "call", "definition", "kinds", "unexplained"),
    [
        ("g", "d", "input.settings.0.lr 0.02 against 0.01", ["defined"], 0),
        ("g", "d", "", [], 1),  # another formula
        ("g", "q|Q", "input.settings.0.lr 0.02 against 0.01", ["born"], 0),  # its calls are in the dump
        ("g|G", "d", "", [], 0),
    ],
)
def test_an_optimizer_whose_calls_no_dump_holds_is_no_rounding(
    gradient: str, call: str, definition: str, kinds: list[str], unexplained: int
) -> None:
    run = Run().call(
        "Tensor.add_.0.forward", ["p"], call, kind="fault" if "|" in call else "equal", blamed=(BORN,) * ("|" in call)
    )
    run.call(
        "Optimizer.Momentum.0.forward",
        [
            value("input.parameters.w", "p"),
            value("input.gradients.w", gradient),
            value("input.state.learning_rate", "l|L"),
        ],
        [value("output.0.parameters.w", "q|Q")],
        kind="contained",
        definition=differences(definition) if definition else (),
    )
    shown = run.found()
    assert ([fault.kind for fault in shown.faults], len(shown.unexplained)) == (kinds, unexplained)


@pytest.mark.parametrize(("before", "count"), [("b|B", 1), ("x", 2)])
def test_without_tensors_a_first_difference_that_a_cause_reaches_is_none(before: str, count: int) -> None:
    first = OutputAccount("output.0", 0.5, {}, {}, blamed={"first": "its inputs agree within their tolerances"})
    near_input = near("input.0", before) if "|" in before else value("input.0", before)
    run = Run().call(
        "Mint.exp.0.forward", ["a"], [near("output.0", "b|B")], kind="first", blamed=(first,), basis="statistics"
    )
    run.call("Mint.log.0.forward", [near_input], "c|C", kind="first", blamed=(first,), basis="statistics")
    assert len(run.faults()) == count


def test_of_layers_without_calls_the_innermost_that_makes_the_difference_is_unexplained() -> None:
    run = Run().call("Cell.a.A.forward.0", ["x"], "y", kind="equal", cells=("a.A",))
    run.call("Cell.b.c.C.forward.0", ["y"], "z|Z", kind="unaccounted", cells=("b.B", "b.c.C"))
    run.call("Cell.b.B.forward.0", ["y"], "z|Z", kind="unaccounted", cells=("b.B",))
    run.call("Cell.d.D.forward.0", ["z|Z"], "u|U", kind="unaccounted", is_given=True, cells=("d.D",))
    shown = run.found()
    assert not shown.faults
    assert [step.record for step in shown.unexplained] == ["Cell.b.c.C.forward.0"]


def test_what_enters_an_outermost_layer_is_the_batch_only_before_all_that_differs() -> None:
    run = Run().call("Cell.net.Net.forward.0", ["x|X"], "y|Y", kind="contained", cells=("net.Net",))
    run.call("Mint.conv.0.forward", ["x|X"], "y|Y", cells=("net.Net",))
    assert [fault.kind for fault in run.faults()] == ["batch"]
    late = Run().call("Mint.exp.0.forward", ["a"], "b|B", kind="fault", blamed=(BORN,))
    late.call("Cell.net.Net.forward.0", ["x|X"], "y|Y", kind="contained", cells=("net.Net",))
    shown = late.call("Mint.conv.0.forward", ["x|X"], "y|Y", cells=("net.Net",)).found()
    assert [fault.kind for fault in shown.faults] == ["born"]
    assert [fault.kind for fault in shown.unknown] == ["unknown"]


def test_a_gradient_that_only_one_run_computes_is_told() -> None:
    run = Run().call("Mint.mul.0.forward", ["a", "b"], "c", kind="equal")
    run.call("Mint.mul.0.backward", ["g"], ["h", "|i"], kind="unaccounted")
    (fault,) = run.faults()
    assert (fault.kind, fault.value) == ("gradient", "output.1")
    assert "the golden run computes the gradient output.1, the target none" in fault.sentence


def test_the_gradient_of_a_parameter_inherits_from_the_gradients_of_its_uses() -> None:
    weight = {"origins": both(leaf="w")}
    run = Run().call("Mint.linear.0.forward", ["a", value("input.1", "w", **weight)], "b", kind="equal")
    run.call("Mint.linear.0.backward", ["g"], ["h", "i|I"], kind="fault", blamed=(BORN,))
    taken = value("input.0", "j|J", origins=both(grad_of="w"))
    (fault,) = run.call("Torch.norm.0.forward", [taken], "n|N").faults()
    assert fault.records == ["Mint.linear.0.backward"]
    assert [step.record for step in fault.reached] == ["Torch.norm.0.forward"]


def repeated(which: int = 0) -> dict[str, Any]:
    """Fields of a backward whose forward a checkpoint computed again with another result."""
    return {"recomputed": (which in (0, 2), which in (1, 2))}


def checkpointed(first: str, **marks: Any) -> Run:
    """Of gelu, a view without a gradient and a linear, whose weight has another gradient: made of another gelu."""
    run = Run().call("Mint.relu.0.forward", ["x"], "a", kind="equal")
    run.call(
        "Mint.gelu.0.forward",
        ["a"],
        first,
        kind="equal" if "|" not in first else "fault",
        blamed=(BORN,) * ("|" in first),
    )
    run.call("Mint.signs.0.forward", [first], first.replace("b", "c").replace("B", "C"), kind="inherited")
    run.call(
        "Mint.linear.0.forward", [first.replace("b", "c").replace("B", "C"), "w"], "d" if "|" not in first else "d|D"
    )
    run.call("Mint.linear.0.backward", ["g"], ["h", "v|V"], kind="unaccounted", is_given=True, **marks)
    run.call("Mint.gelu.0.backward", ["h"], "i", kind="equal", **marks)
    return run.call("Mint.norm.0.forward", ["v|V"], "n|N")


@pytest.mark.parametrize(("which", "side", "run_name"), [(0, "target", "target"), (1, "golden", "golden run")])
def test_a_result_that_only_the_recomputation_has_is_told_of_its_call(which: int, side: str, run_name: str) -> None:
    run = checkpointed("b", **repeated(which))
    shown = run.found()
    (fault,) = shown.faults
    assert (fault.kind, fault.side, fault.records) == ("recomputed", side, ["Mint.gelu.0.backward"])
    words = "its recomputation in the backward gives another result than its forward"
    assert fault.sentence == f"{words}, in the {run_name} only"
    assert {step.record for step in fault.reached} == {"Mint.linear.0.backward", "Mint.norm.0.forward"}
    assert not shown.unexplained


def test_a_result_that_only_the_first_forward_has_is_one_fault_and_says_so() -> None:
    run = checkpointed("b|B", **repeated())
    shown = run.found()
    (fault,) = shown.faults
    assert (fault.kind, fault.records[0]) == ("born", "Mint.gelu.0.forward")
    assert fault.sentence.endswith("; in the target its recomputation in the backward gave another result")
    assert not shown.unexplained


def test_recomputations_that_differ_in_both_runs_blame_nothing_and_explain_nothing() -> None:
    run = checkpointed("b", **repeated(2))
    shown = run.found()
    assert not shown.faults
    assert [step.record for step in shown.unexplained] == ["Mint.linear.0.backward"]


def test_a_recomputation_that_changes_no_gradient_by_more_than_it_may_is_no_fault() -> None:
    run = Run().call("Mint.gelu.0.forward", ["a"], "b", kind="equal")
    run.call("Mint.gelu.0.backward", ["g"], [near("output.0", "h|H")], kind="unaccounted", **repeated())
    assert run.faults() == []


def test_each_recomputation_that_differs_is_told_but_not_what_another_fault_reaches() -> None:
    def dropouts(second: str) -> Run:
        run = Run().call("Mint.dropout.0.forward", ["a"], "b", kind="equal")
        run.call("Mint.dropout.1.forward", [second], "c", kind="equal")
        run.call("Mint.dropout.1.backward", ["g"], "h|H", kind="unaccounted", **repeated())
        return run.call("Mint.dropout.0.backward", ["h|H"], "i|I", kind="unaccounted", **repeated())

    assert [fault.step.operation.call for fault in dropouts("b").faults()] == ["Mint.dropout.0"]  # which the other gets
    assert [fault.kind for fault in dropouts("x").faults()] == ["recomputed", "recomputed"]
    run = Run().call("Mint.sin.0.forward", ["a"], "b|B", kind="fault", blamed=(BORN,))
    run.call("Mint.dropout.0.forward", ["b|B"], "c|C")
    run.call("Mint.dropout.0.backward", ["g"], "h|H", kind="unaccounted", **repeated())
    assert [fault.kind for fault in run.faults()] == ["born"]


def test_what_a_call_leaves_in_its_argument_is_its_own() -> None:
    """No record shows running statistics before the next call that gets them."""
    left = both(made_by="Functional.batch_norm.0.forward.input.1")
    run = Run().call("Functional.batch_norm.0.forward", ["a", "m"], "b", kind="equal")
    run.call("Functional.batch_norm.1.forward", ["c", value("input.1", "n|N", origins=left)], "d|D")
    (fault,) = run.faults()
    assert (fault.kind, fault.value, fault.records) == ("born", "input.1", ["Functional.batch_norm.0.forward"])
    assert [step.record for step in fault.reached] == ["Functional.batch_norm.1.forward"]


def test_what_no_record_made_in_one_run_only_is_rewired_where_the_dumps_say_who_made_values() -> None:
    state = Provenance(), Provenance(made_by="Torch.exp.0.forward.output.0")
    seen = value("input.0", "x", origins=both(made_by="Torch.exp.0.forward.output.0"))
    run = (
        Run()
        .call("Torch.exp.0.forward", ["a"], "x", kind="equal")
        .call("Torch.sin.0.forward", [seen], "s", kind="equal")
    )
    (fault,) = run.call("Torch.gru.0.forward", ["s", value("input.1", "z|x", origins=state)], "g|G").faults()
    assert fault.kind == "rewired"
    assert "gets what no record made in the target, Torch.exp.0.forward.output.0 in the golden run" in fault.sentence


def test_integers_that_a_loss_gets_through_a_cast_are_the_batch() -> None:
    run = Run().call("Mint.exp.0.forward", ["a"], "b", kind="equal")
    labels = {"is_integer": True}
    run.call("Tensor.to.0.forward", [value("input.0", "i|I", **labels)], [value("output.0", "j|J", **labels)])
    run.call("Functional.cross_entropy.0.forward", ["b", value("input.1", "j|J", **labels)], "l|L")
    assert [fault.kind for fault in run.faults()] == ["batch"]


def test_a_weight_that_is_tied_in_one_run_only_is_told_though_its_values_agree() -> None:
    def run(last: str, other: str) -> Run:
        names = Provenance(leaf=last), Provenance(leaf=other)
        steps = Run().call(
            "Torch.embedding.0.forward", ["a", value("input.1", "w", origins=both(leaf="words"))], "b", kind="equal"
        )
        return steps.call("Torch.linear.0.forward", ["b", value("input.1", "w", origins=names)], "c", kind="equal")

    (fault,) = run("head", "words").faults()
    assert (fault.kind, fault.records) == ("rewired", ["Torch.linear.0.forward"])
    assert "gets parameter head in the target, parameter words in the golden run, of equal values" in fault.sentence
    assert run("module.head", "head").faults() == []


def test_a_value_that_the_golden_run_gets_elsewhere_is_rewired_and_no_other_batch() -> None:
    run = Run().call("Torch.linear.0.forward", ["left"], "a", kind="equal")
    (fault,) = run.call("Torch.linear.1.forward", ["left|right"], "b|B").faults()
    assert (fault.kind, fault.records) == ("rewired", ["Torch.linear.1.forward"])
    assert "gets in the target what Torch.linear.0.forward.input.0 is in the golden run" in fault.sentence


def test_a_gradient_beyond_its_limit_whose_sum_nothing_shows_is_of_unknown_origin() -> None:
    run = gradients("u|U")
    shown = run.found(is_wrong_sum=None)
    assert not shown.faults
    assert [fault.records for fault in shown.unknown] == [["Mint.exp.0.backward"]]


def test_the_gradient_of_a_detached_use_is_none_of_the_sum() -> None:
    detached = value("input.0", "x", trains=("False", "False"))
    run = (
        Run()
        .call("Mint.exp.0.forward", ["a"], "x", kind="equal")
        .call("Mint.loss.0.forward", [detached, "t"], "l", kind="equal")
    )
    run.call("Mint.log.0.forward", ["x"], "y", kind="equal").call("Mint.log.0.backward", ["g"], "h", kind="equal")
    run.call("Mint.loss.0.backward", ["k"], "m", kind="equal").call("Mint.exp.0.backward", ["u|U"], "v|V")
    flow = DataFlow(run.steps)
    (entering,) = run.steps[-1].inputs
    assert [maker.name for maker in flow.gradient_sources(run.steps[-1], entering)] == ["Mint.log.0.backward.output.0"]


def test_what_reads_unwritten_memory_is_not_the_first_that_differs() -> None:
    nothing = value("input.0", "u|U", origins=both(is_uninitialized=True))
    said = value("input.0", "s", origins=both(made_by="Torch.linear.0.forward.output.0"))
    run = Run().call("Torch.linear.0.forward", ["a"], "s", kind="equal").call("Tensor.get.0.forward", [nothing], "v|V")
    index = value("input.1", "i|I", is_integer=True)
    run.call("Tensor.index_put_.0.forward", [value("input.0", "v|V"), index, said], "w|W")
    assert [(fault.kind, fault.value) for fault in run.faults()] == [("unknown", "input.1")]


def test_a_backward_whose_forward_holds_no_tensor_is_followed_like_all_others() -> None:
    run = Run().call("Torch.exp.0.forward", [], [], kind="equal")
    (fault,) = run.call("Torch.exp.0.backward", ["g"], "h|H", kind="fault", blamed=(BORN,)).faults()
    assert fault.records == ["Torch.exp.0.backward"]


def test_an_input_of_equal_value_from_another_call_is_told_where_gradients_differ() -> None:
    def made(record: str) -> Provenance:
        return Provenance(made_by=f"{record}.forward.output.0")

    run = (
        Run()
        .call("Torch.exp.0.forward", ["a"], "x", kind="equal")
        .call("Torch.min.0.forward", ["b"], "x", kind="equal")
    )
    other = value("input.0", "x", origins=(made("Torch.exp.0"), made("Torch.min.0")))
    run.call("Torch.sin.0.forward", [other], "s", kind="equal")
    run.call("Torch.exp.0.backward", ["g|G"], "h|H")
    assert [(fault.kind, fault.records) for fault in run.faults()] == [("rewired", ["Torch.sin.0.forward"])]
    run.steps.pop()
    assert run.faults() == []


@pytest.mark.parametrize("of", [{"made_by": "Mint.matmul.3.forward.output.0"}, {"grad_of": "up.weight"}])
def test_what_a_call_made_that_the_dumps_do_not_hold_is_not_before_any_operation(of: dict[str, str]) -> None:
    run = Run().call("Mint.exp.0.forward", [value("input.0", "a|A", origins=both(**of))], "b|B")
    shown = run.found()
    assert not shown.faults
    (unknown,) = shown.unknown
    assert "which the dumps do not hold" in unknown.sentence


def test_a_call_that_the_other_run_compiles_is_not_blamed() -> None:
    run = Run().call("Torch.tanh.0.forward", ["a"], "b", side="target", kind="unmatched", is_compiled=True)
    (fault,) = run.call("Torch.sum.0.forward", ["b|B"], "c|C").faults()
    assert (fault.kind, fault.sentence) == ("unknown", "input.0 differs: compiled code made it in one run")


@pytest.mark.parametrize(
    ("origin", "kind"), [({"leaf": "up.weight"}, "parameter"), ({"leaf": ""}, "parameter"), ({}, "unknown")]
)
def test_any_bit_of_a_value_that_no_operation_made_is_a_difference(origin: dict[str, str], kind: str) -> None:
    run = Run().call("Torch.exp.0.forward", ["a"], "b", kind="equal")
    leaf = near("input.1", "w|W", origins=both(**origin))
    made = value("input.0", "b", origins=both(made_by="Torch.exp.0.forward.output.0"))
    (fault,) = run.call("Torch.mul.0.forward", [made, leaf], [near("output.0", "c|C")]).faults()
    assert (fault.kind, fault.name, fault.value) == (kind, origin.get("leaf", ""), "input.1")


def test_a_value_that_may_have_been_rounded_differs_within_its_limit() -> None:
    rounded = near("output.0", "b|B")
    made = near("input.0", "b|B", origins=both(made_by="Torch.exp.0.forward.output.0"))
    changed = near("input.1", "w|W", origins=both(leaf="up.weight"))
    for inputs in (
        [made, near("input.1", "u|U")],  # unrecorded code may have made it of what differs before
        [made, near("input.1", "w|W", is_one_dtype=False, origins=both(leaf="up.weight"))],
    ):
        run = Run().call("Torch.exp.0.forward", ["a"], [rounded], kind="rounding")
        assert run.call("Torch.mul.0.forward", inputs, [near("output.0", "c|C")]).faults() == []
    run = Run().call("Torch.exp.0.forward", ["a"], [rounded], kind="rounding")
    run.call("Torch.exp.0.backward", ["g"], [near("output.0", "h|H")])
    # An optimizer may have written to it since.
    assert run.call("Torch.mul.0.forward", [made, changed], [near("output.0", "c|C")]).faults() == []


@pytest.mark.parametrize("name", ["Tensor.__setitem__.0", "Torch.sin.0"])
def test_what_a_call_overwrites_may_be_memory_that_nothing_wrote_to(name: str) -> None:
    run = Run().call("Torch.exp.0.forward", ["x"], "y", kind="equal")
    run.call(f"{name}.forward", ["a|A", "y"], [])
    assert [fault.step.operation.call for fault in [*run.faults(), *run.found().unknown]] == (
        [] if "set" in name else [name]
    )
