"""Runs of both sides of a planted cause, collected by the collectors with any keys of config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from debugger_fixtures import collected
from planted_networks import Training
from torch import overrides
from torch.overrides import TorchFunctionMode

from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis
from quality.accounting.causes import Cause, Change
from quality.accounting.foreign.answers import described, verdict_of
from quality.accounting.foreign.pairs import Pair
from quality.accounting.foreign.writing import run_torch
from quality.accounting.framework_pairs import FrameworkPair
from quality.accounting.torch_recorder import recorded_names

Keys = Mapping[str, Any]
#: What the collector sees of causes that the catalogue's recorder does not: calls that prepare the batch.
ALSO_RIGHT = {
    "mask shifted by one": ("Torch.triu.0",),
    "one word of the batch": ("Tensor.__setitem__.0",),
    "one pixel of the batch": ("Tensor.__setitem__.0",),
}


class _Changed(TorchFunctionMode):
    """Does something else in a call, below the collector; calls are counted as the collector counts them."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self._change = change
        self._names = recorded_names()
        self._counts: dict[str, int] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (name := self._names.get(function)) is None:
            return function(*args, **kwargs)
        number = self._counts[name] = self._counts.get(name, -1) + 1
        found = self._change(f"{name}.{number}", function, args, kwargs)
        return function(*args, **kwargs) if found is None else found


@contextmanager
def _below_all(mode: TorchFunctionMode) -> Iterator[None]:
    """`mode` below all others of this thread, that of the collector included."""
    others = [overrides._pop_mode() for _ in range(overrides._len_torch_function_stack())]
    for other in (mode, *reversed(others)):
        overrides._push_mode(other)
    yield
    overrides._pop_mode()


def write(pair: Cause | FrameworkPair, folder: Path, target: Keys, golden: Keys) -> tuple[Path, Path]:
    """(target, golden) dumps of a cause, below `folder`."""
    if isinstance(pair, FrameworkPair):
        return pair.write(folder, target, golden)
    plain = pair.golden() if pair.golden is not None else Training.of(pair.network)
    wrong = pair.target()
    return _step(wrong, folder / "target", target, pair.change), _step(plain, folder / "golden", golden, None)


def _step(training: Training, folder: Path, keys: Keys, change: Change | None) -> Path:
    from msprobe_collector.pytorch import PrecisionDebugger

    training.warm_up()
    torch.manual_seed(0)
    with collected(PrecisionDebugger, folder, **keys) as debugger:
        debugger.start(training.net)
        with _below_all(_Changed(change)) if change is not None else nullcontext():
            training.step()
            debugger.stop()
        debugger.step()
    (path,) = folder.glob("step0/*/dump.json")
    return path


@dataclass
class ForeignPair:
    """A pair of quality/accounting/foreign: what may be named shows where it is run."""

    pair: Pair
    _expected: list[str] = field(default_factory=list)

    def write(self, folder: Path, target: Keys, golden: Keys) -> tuple[Path, Path]:
        """(target, golden) dumps, below `folder`."""
        pair = self.pair
        path, marks = run_torch(pair.network, pair.target, folder / "target", **target)
        other, other_marks = run_torch(pair.network, pair.golden, folder / "golden", **golden)
        if not self._expected:  # of the first run, which is of everything
            self._expected = pair.accepted(marks, other_marks)
        return path, other

    def is_right(self, diagnosis: RunDiagnosis) -> bool:
        """Whether it names what was planted, and nothing else."""
        names = [described(fault) for fault in diagnosis.faults]
        return verdict_of(diagnosis.outcome, names, self._expected, self.pair.answer) == "exact"
