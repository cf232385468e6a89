"""Which call is named where two runs of different calls part."""

from __future__ import annotations

import pytest

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.suites.comparison.accounting.account import Account, AccountStep
from pytest_msprobe.suites.comparison.accounting.diagnosis import causes_by_content
from pytest_msprobe.suites.comparison.content.place import Region


def step(record: str, place: int, **account: object) -> AccountStep:
    return AccountStep(Operation.of(record, place), Account("unaccounted", place=place, **account))


@pytest.mark.parametrize(
    ("backward", "kind", "record"),
    [
        ("", "only_one_side", "Tensor.detach.0.forward"),  # nothing shows what it does to gradients
        ("Tensor.detach.0.backward", "parted", "Optimizer.SGD.0.forward"),  # gradients that passed it agree behind it
        ("Tensor.detach.1.backward", "only_one_side", "Tensor.detach.0.forward"),  # that of another call
    ],
)
def test_a_call_of_one_run_explains_another_gradient_unless_its_backward_is_there(
    backward: str, kind: str, record: str
) -> None:
    optimizer = "Optimizer.SGD.0.forward"
    steps = [step("Tensor.detach.0.forward", 0, content="unused")]
    if backward:
        steps.append(step(backward, 1, content="unused"))
    steps.append(step(optimizer, 2, content="parted", region=Region((optimizer,), parameters=("weight",))))
    (fault,) = causes_by_content(steps, [])
    assert (fault.kind, fault.step.record) == (kind, record)


def test_a_call_that_writes_over_what_a_backward_needs_explains_it_whatever_its_own_backward_gives() -> None:
    backward = "Tensor.exp.0.backward"
    steps = [
        step("Tensor.mul_.0.forward", 0, content="unused"),
        step("Tensor.mul_.0.backward", 1, content="unused"),
        step(backward, 2, content="parted", region=Region((backward,))),
    ]
    (fault,) = causes_by_content(steps, [])
    assert (fault.kind, fault.step.record) == ("only_one_side", "Tensor.mul_.0.forward")
