"""Following an input to what made it changes nothing: it can be asked again, and in any order."""

from __future__ import annotations

from copy import deepcopy

import pytest
from msgspec import structs

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.suites.comparison.accounting.account import Account, AccountStep, ValueKey
from pytest_msprobe.suites.comparison.accounting.causes import Causes, Fault
from pytest_msprobe.suites.comparison.accounting.evidence import OtherLeaves
from pytest_msprobe.suites.comparison.accounting.faults import find_faults
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow
from pytest_msprobe.suites.comparison.accounting.tracing import RunTraits, Traced, Tracer, TraceState

RUN = RunTraits(is_whole=True, is_one_framework=True, tells_dtypes=True, first_place=1)


def value(path: str, target: str, golden: str = "") -> ValueKey:
    distance = 0.5 if golden else 0.0
    key = ValueKey(path, path.startswith("output"), target, golden or target, distance, (4,), bool(golden))
    return structs.replace(key, limits=(0.1, 0.1))


def call(place: int, record: str, *keys: ValueKey) -> AccountStep:
    account = Account("inherited", keys=keys, partner=record, place=place, partner_place=place)
    return AccountStep(Operation.of(record, place), account)


#: The second call gets what nothing made, what the first one made, another output than the golden run gets, and the
#: other way round; the third one gets what the second one made.
STEPS = (
    call(0, "Mint.split.0.forward", value("input.0", "a"), value("output.0", "b"), value("output.1", "c")),
    call(
        1,
        "Mint.stack.0.forward",
        value("input.0", "x", "X"),
        value("input.1", "b", "c"),
        value("input.2", "c", "b"),
        value("output.0", "d", "D"),
    ),
    call(2, "Mint.exp.0.forward", value("input.0", "d", "D"), value("output.0", "e", "E")),
)
INPUTS = [(step, key) for step in STEPS[1:] for key in step.inputs]


def tracer() -> tuple[Tracer, TraceState]:
    flow = DataFlow(STEPS)
    state = TraceState(Causes(flow))
    return Tracer(flow, state, RUN, OtherLeaves(flow), lambda step, key, sources: False), state


def shown(traced: Traced) -> tuple[object, ...]:
    """What a look-up gives; a fault is another object each time."""
    return traced.makers, traced.limit, traced.is_shown, traced.fault, traced.node, traced.is_open, traced.heirs


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_an_input_is_traced_alike_twice_and_in_another_order(order: slice) -> None:
    looks, state = tracer()
    first = {key.path + step.record: shown(looks.trace(Traced(step, key, 0.1))) for step, key in INPUTS}
    before = deepcopy((state.limits, state.shown, state.unknown, state.unexplained, state.passed_on))
    again = {key.path + step.record: shown(looks.trace(Traced(step, key, 0.1))) for step, key in INPUTS[order]}
    assert again == first
    assert (state.limits, state.shown, state.unknown, state.unexplained, state.passed_on) == before
    assert not list(state.causes)
    assert {traced[4] for traced in first.values()} == {
        "value x X",
        "rewired Mint.split.0.forward.output.0 Mint.split.0.forward.output.1",
        "",
    }


def test_what_an_input_shows_counts_once_it_is_added() -> None:
    looks, state = tracer()
    step, key = INPUTS[0]
    traced = looks.trace(Traced(step, key, 0.1))
    state.add(traced)
    assert [fault.kind for fault in state.causes] == ["unknown"]
    assert [fault.records for fault in state.causes] == [[step.record]]
    assert looks.trace(Traced(step, key, 0.1)).node == traced.node == "value x X"


def test_the_faults_of_a_run_are_found_alike_twice() -> None:
    flow = DataFlow(STEPS)
    once, again = (find_faults(flow, lambda step, key, sources: False) for _ in range(2))
    assert once == again
    assert [fault.kind for fault in once.faults if isinstance(fault, Fault)]
