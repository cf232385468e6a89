"""A benchmark on an accelerator is trusted as far as the CPU agrees: engines with faults stand for accelerators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.engines import accelerated
from pytest_msprobe.engines.accelerated import AcceleratedBench
from pytest_msprobe.engines.protocol import Array, Call, Engine, Output, Unsupported


@dataclass
class Squaring:
    """An engine that squares, and changes its results by `change`, its gradients by `change_gradients`."""

    label: str = "fake"
    change: Callable[[Array], Array] = lambda array: array
    change_gradients: Callable[[Array], Array] = lambda array: array
    name: str = "torch"
    calls: list[int] = field(default_factory=list)

    def refusal(self, api: Any, framework: str) -> str | None:
        return None

    def forward(self, call: Call, *, differentiate: Any) -> Any:
        (value,) = call.arguments
        assert isinstance(value, np.ndarray)
        self.calls.append(value.size)
        engine, wide = self, value.astype(np.float64)

        class Forward:
            outputs = (Output((0,), engine.change(wide * wide)),)

            def gradients(self, incoming: Any) -> Any:
                return (engine.change_gradients(2 * wide * incoming[0]),)

        return Forward()

    def close(self) -> None:
        pass


def bench_of(tested: Squaring) -> tuple[AcceleratedBench, Squaring]:
    cpu = Squaring()
    engines: list[Engine] = [tested, cpu]
    return AcceleratedBench(*engines), cpu


def call(size: int, api: str = "Torch.square.0", **changes: Any) -> Call:
    value = np.linspace(-1, 1, size).astype(np.float32)
    return Call(parse_api_name(api), "pytorch", (value,), {}, **changes)


def test_each_api_is_compared_once_and_again_where_calls_are_far_larger() -> None:
    tested = Squaring("accelerator")
    bench, cpu = bench_of(tested)
    for size in (10, 10, 50, 100, 100):
        bench.forward(call(size), differentiate=())
    bench.forward(call(10, "Torch.other.0"), differentiate=())
    assert tested.calls == [10, 10, 50, 100, 100, 10]
    assert cpu.calls == [10, 100, 10]
    assert bench.refused == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array.astype(np.float32).astype(np.float64),
        lambda array: array.astype(np.float32),
        lambda array: np.where(array > 0.9, np.nan, array),
        lambda array: array * 0,
    ],
    ids=["float32 inside", "another dtype", "NaN", "zero"],
)
def test_what_the_cpu_does_not_confirm_runs_there(change: Callable[[Array], Array]) -> None:
    bench, _ = bench_of(Squaring("accelerator", change))
    with pytest.raises(Unsupported, match="accelerator and the CPU differ by"):
        bench.forward(call(10), differentiate=())
    assert bench.refusal(parse_api_name("Torch.square.7"), "pytorch") == bench.refused["Torch.square"]
    assert bench.refusal(parse_api_name("Torch.other.0"), "pytorch") is None


def test_gradients_are_compared_too() -> None:
    bench, _ = bench_of(Squaring("accelerator", change_gradients=lambda array: array * (1 + 1e-7)))
    execution = bench.forward(call(10), differentiate=(("input", 0),))
    with pytest.raises(Unsupported, match="differ by 1e-07"):
        execution.gradients((np.ones(10),))
    assert list(bench.refused) == ["Torch.square"]


def test_what_is_beyond_the_budget_is_for_the_cpu_unless_a_smaller_call_was_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accelerated, "BUDGET", 50)
    bench, cpu = bench_of(Squaring("accelerator"))
    with pytest.raises(Unsupported, match="no smaller call of the API was compared"):
        bench.forward(call(60), differentiate=())
    bench.forward(call(40), differentiate=())
    bench.forward(call(60), differentiate=())
    with pytest.raises(Unsupported):
        bench.forward(call(20, "Torch.other.0"), differentiate=())
    assert cpu.calls == [40]


def test_no_memory_there_and_moved_arithmetic_are_for_the_cpu() -> None:
    def fail(array: Array) -> Array:
        raise RuntimeError("out of memory")

    bench, cpu = bench_of(Squaring("accelerator", fail))
    with pytest.raises(Unsupported, match="accelerator: out of memory"):
        bench.forward(call(10), differentiate=())
    assert bench.refused == {}
    bench.forward(call(10, saved_roundoff=1e-8), differentiate=())
    assert cpu.calls == [10]
