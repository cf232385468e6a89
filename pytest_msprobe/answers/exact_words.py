"""What is said of an exact run: a part of `words`, which says all of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import structs

from msprobe_collector.dump_format.values import counted, optional
from pytest_msprobe.answers.finding import Exact

_RUNS = {"target": "the target", "golden": "the golden run"}


def exact_said(exact: Exact | None) -> Exact | None:
    """`exact` with its text."""
    return None if exact is None else structs.replace(exact, text=nearer(exact))


def nearer(exact: Exact) -> str:
    """Which run is nearer to the exact one, in one sentence."""
    return f"{_EXACT[exact.kind](exact)}{optional(', at {}', exact.source)}"


def _roundings(number: float | None) -> str:
    return "not finite" if number is None else f"{number:.2g}"


def _off(exact: Exact) -> str:
    """`Functional.softmax.3 forward output.0: target 0.9 and golden 40 roundings of float32 off`."""
    target, golden = _roundings(exact.target), _roundings(exact.golden)
    if exact.target_dtype == exact.golden_dtype:
        off = f"target {target} and golden {golden} roundings of {exact.target_dtype} off"
    else:
        off = f"target {target} roundings of {exact.target_dtype} and golden {golden} of {exact.golden_dtype} off"
    return f"{_value(exact)}: {off}"


def _inputs(exact: Exact) -> str:
    if exact.target_input is None or exact.golden_input is None:
        return ""
    return f", what goes in {_roundings(exact.target_input)} and {_roundings(exact.golden_input)}"


def _value(exact: Exact) -> str:
    call, _, direction = exact.record.rpartition(".")
    return f"{call} {direction} {exact.value}"


def _left(exact: Exact) -> str:
    verdict = "is wrong" if exact.is_proved else "leaves it there"
    by = ", by statistics alone" if exact.basis == "statistics" and not exact.is_proved else ""
    return f"{_off(exact)}{_inputs(exact)}: {_RUNS[exact.farther]} {verdict}{by}"


def _other_input(exact: Exact) -> str:
    if exact.farther == "both":
        return f"says nothing, since it is of another step, batch or seed: it gets another {_value(exact)}"
    return f"says nothing of {_RUNS[exact.farther]}, which gets another {_value(exact)}"


_EXACT: Mapping[str, Callable[[Exact], str]] = {
    "left": _left,
    "drifted": lambda exact: f"{_RUNS[exact.farther]} is farther off from {_off(exact)}{_inputs(exact)}",
    "near": lambda exact: (
        f"both are as near as their dtypes allow in {counted(exact.judged, 'values')}, farthest in {_off(exact)}"
    ),
    "alike": lambda exact: f"neither is nearer, both are far off in {_off(exact)}",
    "together": lambda exact: (
        f"both leave it and agree with each other: it draws other numbers, or both are wrong, from {_off(exact)}"
    ),
    "other input": _other_input,
    "nothing": lambda exact: "says nothing: no value of it in float64 is in both runs",
}
