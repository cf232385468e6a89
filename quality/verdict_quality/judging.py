"""Verdicts of the product itself: `CallCheck` over a dump, with outputs replaced through its own hook."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pluggy
import pytest

from msprobe_collector.dump_format import DIRECTIONS, ApiName, Direction, Dump
from pytest_msprobe import hookspecs
from pytest_msprobe.engines.protocol import Array, Call, Engine, Execution, LeafPath, Output, parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.engines.torch_engine import TorchEngine
from pytest_msprobe.numerics.judgement import CosineMaxAbs, Standard
from pytest_msprobe.numerics.standards.backward_error import BackwardError, Fused
from pytest_msprobe.suites.precheck.check import CallCheck, CheckSettings
from pytest_msprobe.suites.precheck.hooks import Hooks
from pytest_msprobe.suites.precheck.options import NumericSettings
from pytest_msprobe.verdicts import Verdict
from quality.verdict_quality.recordings import BENCHMARK, NATIVE

#: The one place where a standard is made by name.
STANDARDS: dict[str, Callable[[], Standard]] = {
    CosineMaxAbs.name: CosineMaxAbs,
    BackwardError.name: BackwardError,
    Fused.name: Fused,
}
_NO_LIMIT = 1 << 50
Alteration = Callable[[list[Any]], list[Any]]


class Judge:
    """The verdicts of one device on the calls of one dump, under any standard."""

    def __init__(self, dump: Path, *, device: str = "recorded") -> None:
        self._dump = Dump(dump)
        self._engines = RememberingEngines(device)
        self._altering = _Altering()
        manager = pluggy.PluginManager("pytest")
        manager.add_hookspecs(hookspecs)
        manager.register(self._altering)
        self._hooks = Hooks(SimpleNamespace(hook=manager.hook))  # type: ignore[arg-type]  # only its hooks are asked

    def verdict(
        self,
        name: str,
        direction: Direction,
        standard: str | Standard,
        *,
        altered: Alteration | None = None,
        numeric: NumericSettings | None = None,
    ) -> Verdict:
        """The finding of a fresh check; `altered` gets the device's values of that direction and gives others."""
        settings = CheckSettings(
            seed=0,
            max_memory_bytes=_NO_LIMIT,
            standard=STANDARDS[standard]() if isinstance(standard, str) else standard,
            hooks=self._hooks,
            numeric=numeric or NumericSettings(),
        )
        check = CallCheck(self._dump, name, self._engines, settings, directions=DIRECTIONS)
        self._altering.now = None if altered is None else (direction, altered)
        try:
            return check.run(direction)
        finally:
            check.close()

    def forget(self) -> None:
        """Let go of the benchmark's results: call it between API calls."""
        self._engines.forget()


class _Altering:
    """A conftest.py, as it were."""

    def __init__(self) -> None:
        self.now: tuple[Direction, Alteration] | None = None

    @pytest.hookimpl
    def pytest_msprobe_outputs(self, direction: Direction, outputs: list[Any]) -> list[Any] | None:
        """The altered values."""
        if self.now is None or self.now[0] != direction:
            return None
        return self.now[1](outputs)


class RememberingEngines(Engines):
    """Engines whose benchmark runs once for equal arguments, so that many faults of one call cost one run."""

    def __init__(self, device: str) -> None:
        super().__init__(EngineChoice(parse_device(device), "torch", None))
        self._memory: dict[Any, RememberedExecution] = {}

    @cached_property
    def benchmarks(self) -> tuple[Engine, ...]:
        """PyTorch in float64."""
        return (RememberingEngine(BENCHMARK, self._memory),)

    @cached_property
    def second_opinion(self) -> Engine:
        """PyTorch in the dump's dtypes."""
        return RememberingEngine(NATIVE, self._memory)

    def forget(self) -> None:
        """Forget all runs."""
        self._memory.clear()


class RememberingEngine:
    """A torch engine with a memory."""

    def __init__(self, engine: TorchEngine, memory: dict[Any, RememberedExecution]) -> None:
        self._engine = engine
        self._memory = memory
        self.name = engine.name
        self.label = engine.label

    def refusal(self, api: ApiName, framework: str) -> str | None:
        """See `Engine.refusal`."""
        return self._engine.refusal(api, framework)

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> RememberedExecution:
        """See `Engine.forward`."""
        key = (self.label, differentiate, *(_print_of(getattr(call, field.name)) for field in fields(call)))
        if key not in self._memory:
            self._memory[key] = RememberedExecution(lambda: self._engine.forward(call, differentiate=differentiate))
        return self._memory[key]

    def close(self) -> None:
        """See `Engine.close`."""


class RememberedExecution:
    """An execution that computes gradients once for equal incoming ones; others get a run of their own, as a graph can
    be used only once.
    """

    def __init__(self, run: Callable[[], Execution]) -> None:
        self._run = run
        self._execution = run()
        self._gradients: dict[Any, tuple[Array | None, ...]] = {}

    @property
    def outputs(self) -> tuple[Output, ...]:
        """See `Execution.outputs`."""
        return self._execution.outputs

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """See `Execution.gradients`."""
        key = _print_of(incoming)
        if key not in self._gradients:
            execution = self._run() if self._gradients else self._execution
            self._gradients[key] = execution.gradients(incoming)
        return self._gradients[key]


def _print_of(value: Any) -> Any:
    """Something hashable that is equal for equal values."""
    if isinstance(value, tuple):
        return tuple(map(_print_of, value))
    if isinstance(value, dict):
        return tuple((key, _print_of(item)) for key, item in value.items())
    if isinstance(value, np.ndarray):
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8) if value.size else b""
        return str(value.dtype), value.shape, hashlib.blake2b(content, digest_size=16).digest()
    return type(value).__name__, repr(value)
