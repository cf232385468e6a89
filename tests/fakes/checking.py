"""One API call, checked directly: no pytest run, no files but a dump, no framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pluggy
from dump_builder import DumpBuilder

from fakes.engine import FakeEngine, FakeEngines
from fakes.operators import OPERATORS
from msprobe_collector.dump_format import Direction, Dump
from pytest_msprobe import hookspecs
from pytest_msprobe.numerics.judgement import CosineMaxAbs, Standard
from pytest_msprobe.suites.precheck.check import CallCheck, CheckSettings
from pytest_msprobe.suites.precheck.hooks import Hooks

X = np.linspace(0.5, 2.0, 6, dtype=np.float32).reshape(2, 3)
Y = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
NO_LIMIT = 1 << 50


def hooks_of(conftest: object | None = None) -> Hooks:
    """Our hooks, implemented by `conftest` or by nobody."""
    manager = pluggy.PluginManager("pytest")
    manager.add_hookspecs(hookspecs)
    if conftest is not None:
        manager.register(conftest)
    return Hooks(SimpleNamespace(hook=manager.hook))  # type: ignore[arg-type]  # only its hooks are asked


@dataclass
class Bench:
    """A call of a dump, the engines that check it, and how.

    Attributes:
        folder: for the dump.
        api: short name, a key of `OPERATORS`; the record is `Mint.{api}.0`.
        arguments, keywords: of the call.
        engines: who executes.
        standard: the rule.
        conftest: an object with hooks, or None.
        changes: fields of `CheckSettings` that are not the usual ones.
    """

    folder: Path
    api: str = "mul"
    arguments: list[Any] = field(default_factory=lambda: [X, Y])
    keywords: dict[str, Any] = field(default_factory=dict)
    engines: FakeEngines = field(default_factory=lambda: FakeEngines(FakeEngine()))
    standard: Standard = field(default_factory=CosineMaxAbs)
    conftest: object | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    builder: DumpBuilder | None = None

    @property
    def name(self) -> str:
        """Of the API call."""
        return f"Mint.{self.api}.0"

    def recorded(self) -> DumpBuilder:
        """A dump with the call as a right run records it, in which a test may change something."""
        operator = OPERATORS[self.api]
        outputs = list(operator.forward(*self.arguments, **self.keywords))
        builder = DumpBuilder(self.folder)
        if operator.backward is None:
            return builder.call(self.name, self.arguments, outputs, keywords=self.keywords)
        incoming = [np.ones_like(output) for output in outputs if output.dtype.kind == "f"]
        gradients = list(operator.backward(tuple(incoming), *self.arguments, **self.keywords))
        return builder.call(
            self.name, self.arguments, outputs, keywords=self.keywords, incoming=incoming, gradients=gradients
        )

    def check(self) -> CallCheck:
        """The check, not yet run."""
        dump = Dump((self.builder or self.recorded()).write())
        settings = {"seed": 0, "max_memory_bytes": NO_LIMIT, "standard": self.standard, **self.changes}
        chosen = CheckSettings(hooks=hooks_of(self.conftest), **settings)
        engines: Any = self.engines
        return CallCheck(dump, self.name, engines, chosen, directions=("forward", "backward"))

    def verdict(self, direction: Direction = "forward") -> Any:
        """The verdict on one direction of a fresh check, which is closed."""
        check = self.check()
        try:
            return check.run(direction)
        finally:
            check.close()
