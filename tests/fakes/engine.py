"""An engine in NumPy that computes right, or wrong in a way that has a name. No framework is involved."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from fakes.operators import OPERATORS, Array
from msprobe_collector.dump_format import ApiName, Dump
from pytest_msprobe.engines.protocol import (
    Call,
    DeviceEngine,
    DeviceSpecification,
    Engine,
    LeafPath,
    Output,
    Unsupported,
    map_leaves,
)

Values = list[Any]


def _same(values: Values) -> Values:
    return values


def _nothing() -> None:
    """Run on."""


@dataclass(frozen=True)
class Fault:
    """What an engine does wrong.

    Attributes:
        outputs, gradients: right values -> those that it returns.
        before_forward, before_gradients: what it does instead of returning anything.
        refusal: why it cannot run the API, as it says when asked; None when it says that it can.
        unsteady: (run of the call, from 1 on, what unwritten memory holds, right values) -> those that it returns.
        is_intact: whether it leaves memory alone that is not its own.
    """

    outputs: Callable[[Values], Values] = _same
    gradients: Callable[[Values], Values] = _same
    before_forward: Callable[[], None] = _nothing
    before_gradients: Callable[[], None] = _nothing
    refusal: str | None = None
    unsteady: Callable[[int, float, Values], Values] = lambda run, memory, values: values
    is_intact: bool = True


def _each(change: Callable[[Array], Any]) -> Callable[[Values], Values]:
    return lambda values: [change(value.copy()) if isinstance(value, np.ndarray) else value for value in values]


def _put(array: Array, value: float) -> Array:
    array.reshape(-1)[array.size // 2] = value
    return array


def _zero_tail(array: Array) -> Array:
    array[-1:] = 0
    return array


def _flip(array: Array, bit: int) -> Array:
    """One bit of the middle element changed."""
    found = array.copy()
    flat = found.reshape(-1).view(np.uint8)
    flat[array.size // 2 * array.itemsize + bit // 8] ^= 1 << bit % 8
    return found


def _now_and_then(change: Callable[[Array], Array]) -> Callable[[int, float, Values], Values]:
    return lambda run, memory, values: _each(change)(values) if run % 7 == 4 else values


def _next(array: Array) -> Array:
    """As another order of additions leaves it: some elements one unit in the last place away."""
    array.reshape(-1)[::2] = np.nextafter(array.reshape(-1)[::2], array.dtype.type(np.inf))
    return array


def _next_alone(array: Array) -> Array:
    return _next(array) if len(array) == 1 else array


def _rolled_if_small(array: Array) -> Array:
    return np.roll(array, 1, axis=0) if len(array) < 5 else array


def _fail_in_run(number: int) -> Callable[[int, float, Values], Values]:
    def act(run: int, memory: float, values: Values) -> Values:
        if run == number:
            raise RuntimeError("lost contact to the device")
        return values

    return act


def _raising(kind: type[Exception], *words: str) -> Callable[[], None]:
    def act() -> NoReturn:
        raise kind(*words)

    return act


def _everywhere(change: Callable[[Array], Any]) -> Fault:
    return Fault(outputs=_each(change), gradients=_each(change))


def _values(change: Callable[[Values], Values]) -> Fault:
    return Fault(outputs=change, gradients=change)


def _action(act: Callable[[], None]) -> Fault:
    return Fault(before_forward=act)


#: Every fault by its name. Tests hold the verdicts and messages of the checker against this table.
FAULTS: Mapping[str, Fault] = {
    "none": Fault(),
    "bias": _everywhere(lambda array: array + array.dtype.type(0.01)),
    "scale": _everywhere(lambda array: array * array.dtype.type(1.05)),
    "one element off": _everywhere(lambda array: _put(array, 99.0)),
    "negated": _everywhere(np.negative),
    "NaN": _everywhere(lambda array: _put(array, np.nan)),
    "Inf": _everywhere(lambda array: _put(array, np.inf)),
    "all zero": _everywhere(np.zeros_like),
    "zeroed tail": _everywhere(_zero_tail),
    "wrong dtype": _everywhere(lambda array: array.astype(np.float16)),
    "wrong shape": _everywhere(lambda array: array.reshape(-1)),
    "cut": _everywhere(lambda array: array[:-1]),
    "one output less": Fault(outputs=lambda values: values[:-1]),
    "one output more": Fault(outputs=lambda values: [*values, values[0]]),
    "swapped": _values(lambda values: values[::-1]),
    "plain value instead of an array": Fault(outputs=lambda values: [1.5, *values[1:]]),
    "None instead of an array": Fault(outputs=lambda values: [None, *values[1:]]),
    "refusal": Fault(refusal="no kernel for it"),
    "unsupported": _action(_raising(Unsupported, "no such dtype here")),
    "raises": _action(_raising(RuntimeError, "kernel failed\n\n---\nC++ stack")),
    "runs out of memory": _action(_raising(MemoryError)),
    "unsupported gradient": Fault(before_gradients=_raising(Unsupported, "no gradient kernel")),
    "raises in its gradient": Fault(before_gradients=_raising(ValueError, "grad failed")),
    "no gradient of the first argument": Fault(gradients=lambda values: [None, *values[1:]]),
    "hangs": _action(lambda: time.sleep(600)),
    "exits": _action(lambda: os._exit(3)),
}

#: Faults that show when a call is repeated, or on another device.
UNSTEADY: Mapping[str, Fault] = {
    "flips a bit now and then": Fault(unsteady=_now_and_then(lambda array: _flip(array, 30))),
    "flips a low bit now and then": Fault(unsteady=_now_and_then(lambda array: _flip(array, 0))),
    "flips the same bit always": Fault(unsteady=lambda run, memory, values: _each(lambda a: _flip(a, 30))(values)),
    "adds in another order": Fault(unsteady=lambda run, memory, values: _each(_next)(values) if run % 2 else values),
    "leaves an element unwritten": Fault(
        unsteady=lambda run, memory, values: _each(lambda array: _put(array, memory))(values)
    ),
    "other values in every run": Fault(
        unsteady=lambda run, memory, values: _each(lambda array: array * array.dtype.type(run))(values)
    ),
    "raises in run 3": Fault(unsteady=_fail_in_run(3)),
    "writes beside its memory": Fault(is_intact=False),
    "another kernel for one row": Fault(unsteady=lambda run, memory, values: _each(_next_alone)(values)),
    "mixes up the rows of small batches": Fault(unsteady=lambda run, memory, values: _each(_rolled_if_small)(values)),
}
_BY_NAME = {**FAULTS, **UNSTEADY}


@dataclass
class FakeExecution:
    """Outputs and gradients of one call, already wrong."""

    outputs: tuple[Output, ...]
    differentiate: Callable[[tuple[Array | None, ...]], tuple[Array | None, ...]]

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """One per argument that was asked for."""
        return self.differentiate(incoming)


@dataclass
class FakeEngine:
    """An engine in the sense of `pytest_msprobe.engines.protocol.Engine`.

    Attributes:
        name: `fake`, or what reports shall call it.
        is_raised: whether it computes in float64, as benchmarks do, or in the dtypes that it gets.
        fault: what it does wrong, by its name in `FAULTS` or `UNSTEADY`.
        ran: how many forwards and gradients it has run.
        is_closed: whether it was closed.
        memory: what a new tensor holds before it is written.
        filled: sizes in bytes of each filling of memory.
    """

    name: str = "fake"
    is_raised: bool = False
    fault: str = "none"
    ran: Counter[str] = field(default_factory=Counter)
    is_closed: bool = False
    memory: float = 0.0
    filled: list[list[int]] = field(default_factory=list)
    _runs: Counter[str] = field(default_factory=Counter)

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.name} CPU{' float64' if self.is_raised else ''}"

    def refusal(self, api: ApiName, framework: str) -> str | None:
        """Why it cannot run `api`."""
        return _BY_NAME[self.fault].refusal

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> FakeExecution:
        """Run the operator of `call`. Raises Unsupported for one that it does not have, or as its fault says."""
        fault = _BY_NAME[self.fault]
        if fault.refusal is not None:
            raise Unsupported(fault.refusal)
        operator = OPERATORS.get(call.api.short)
        if operator is None:
            raise Unsupported(f"{self.name} has no {call.api.short}")
        self.ran["forward"] += 1
        fault.before_forward()
        arguments, keywords = map_leaves(call, lambda path, value: self._prepared(value))
        self._runs[str(call.api)] += 1
        run = self._runs[str(call.api)]
        values = fault.outputs(list(operator.forward(*arguments, **keywords)))
        values = fault.unsteady(run, self.memory, values)

        def gradients(incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
            self.ran["gradients"] += 1
            fault.before_gradients()
            if operator.backward is None:
                raise Unsupported(f"{self.name} has no gradient of {call.api.short}")
            raised = tuple(self._prepared(array) for array in incoming)
            found = fault.gradients(list(operator.backward(raised, *arguments, **keywords)))
            found = fault.unsteady(run, self.memory, found)
            return tuple(found[: len(differentiate)])

        outputs = tuple(Output((place,), value) for place, value in enumerate(values))
        return FakeExecution(outputs, gradients)

    def repeated(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Callable[[], FakeExecution]:
        """Each run with arguments of its own."""
        return partial(self.forward, call, differentiate=differentiate)

    def fill_memory(self, sizes: Sequence[int], value: float) -> Callable[[], bool]:
        """Let new tensors hold `value`."""
        self.ran["fill"] += 1
        self.filled.append(list(sizes))
        self.memory = value
        return lambda: _BY_NAME[self.fault].is_intact

    def close(self) -> None:
        """Note that it was closed."""
        self.is_closed = True

    def _prepared(self, value: Any) -> Any:
        if self.is_raised and isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return value.astype(np.float64)
        return value


@dataclass
class FakeEngines:
    """What `pytest_msprobe.engines.selection.Engines` is to a check.

    Attributes:
        tested: the device; None for the recorded values.
        benchmarks: in the order in which they are asked.
        second_opinion: an engine in the dump's own dtypes, or None.
        refused_by_accelerator: why APIs have another benchmark than the first one, by their names.
    """

    tested: DeviceEngine | None = None
    benchmarks: tuple[Engine, ...] = (FakeEngine("bench", is_raised=True),)
    second_opinion: Engine | None = None
    choice: Any = field(default_factory=lambda: SimpleNamespace(bench="fake"))
    refused_by_accelerator: Mapping[str, str] = field(default_factory=dict)

    def device_for(self, dump: Dump, *, runs: bool = False) -> DeviceSpecification:
        """What is tested."""
        return DeviceSpecification("recorded" if self.tested is None else "torch")

    def device(self, specification: DeviceSpecification) -> DeviceEngine:
        """The tested engine."""
        assert self.tested is not None
        return self.tested
