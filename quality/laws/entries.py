"""What the catalogue is made of: plain training scripts, and what is to be said of each."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: The laws of the catalogue, in the words of the issue that asked for them.
LAWS = {
    "formula": "the update is the optimizer's formula",
    "step": "step counters advance by one and belong to one parameter",
    "moments": "moments follow from this gradient and the moments before",
    "decay": "weight decay is coupled or decoupled as declared, once",
    "shared state": "no optimizer state is shared between parameters or optimizers",
    "no optimizer": "a parameter with a gradient is in an optimizer",
    "two optimizers": "a parameter is in one optimizer, once",
    "frozen": "what an optimizer is to train is trained",
    "stale gradient": "a gradient belongs to this step alone",
    "no gradient": "a parameter that the forward used has a gradient",
    "lost updates": "updates are not lost below the resolution of the dtype",
    "clip norm": "gradients are clipped by their own norm",
    "unscaled": "a scaled gradient is unscaled before it is clipped or applied",
    "tied": "tied parameters stay tied",
    "dtype": "parameters and buffers keep their dtype",
    "storage": "parameters and buffers keep their storage",
    "replicas": "replicas agree",
    "EMA": "a moving average follows its decay",
    "dropout in eval": "dropout is off in evaluation",
    "dropout layers": "layers draw their own dropout masks",
    "dropout ranks": "data parallel ranks draw their own dropout masks",
    "recomputation": "a recomputation draws what the forward drew",
    "data workers": "data workers draw their own random numbers",
    "same batch": "the next step has another batch",
    "labels": "labels are the next tokens",
    "resume": "a resumed run has the state of the saved one",
    "schedule": "a scheduler moves as often as its optimizer steps, and after it",
    "hyper-parameters": "hyper-parameters are those for which the formula is defined",
    "no update": "gradients that are computed reach a step",
    "accumulation": "gradients of microbatches are averaged once",
    "rank data": "data parallel ranks have data of their own",
    "target": "a target network follows",
}

#: Where the scripts stand; those of `HELD_OUT` were written after the laws.
MODULES = {
    "torch": (
        "quality.laws.torch_optimizers",
        "quality.laws.torch_gradients",
        "quality.laws.torch_state",
        "quality.laws.torch_randomness",
        "quality.laws.torch_resume",
        "quality.laws.torch_clean",
    ),
    "mindspore": ("quality.laws.mindspore_violations", "quality.laws.mindspore_clean"),
}
HELD_OUT = {
    "torch": (
        "quality.laws.held_out_torch",
        "quality.laws.held_out_torch_later",
        "quality.laws.outside_violations",
        "quality.laws.outside_right",
    ),
    "mindspore": ("quality.laws.held_out_mindspore", "quality.laws.outside_mindspore"),
}


@dataclass(frozen=True, eq=False)
class Entry:
    """A training script.

    Attributes:
        name: in the catalogue.
        framework: "torch" or "mindspore".
        train: the script, called without arguments in a folder of its own.
        laws: keys of `LAWS` of which a finding must be; the first one is the law that is broken, the others say the
            same of it. Empty for a right training.
        at: what a finding must name: parameters, layers, or the part of a run that a resumed one lost. All of them
            are at fault, so a finding that names one of them is right.
        wrong: what is wrong, in a sentence.
        source: where the bug was reported; empty for one written for this catalogue.
        link: to that report.
        ranks: how many processes train together (gloo).
        runs: how often the script is started in the same folder; the last start is the one that is judged.
        is_held_out: whether it was written after the laws were.
    """

    name: str
    framework: str
    train: Callable[[], None]
    laws: tuple[str, ...] = ()
    at: tuple[str, ...] = ()
    wrong: str = ""
    source: str = ""
    link: str = ""
    ranks: int = 1
    runs: int = 1
    is_held_out: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether nothing is to be found."""
        return not self.laws

    @property
    def folder(self) -> str:
        """A name for its folder."""
        return f"{self.framework}_{re.sub(r'[^A-Za-z0-9]+', '_', self.name).strip('_')}"


_entries: dict[str, list[Entry]] = {}


def _added(train: Callable[[], None], entry: Entry) -> Callable[[], None]:
    _entries.setdefault(train.__module__, []).append(entry)
    return train


def _framework(train: Callable[[], None]) -> str:
    return "mindspore" if "mindspore" in train.__module__ else "torch"


def _is_held_out(train: Callable[[], None]) -> bool:
    return any(train.__module__ in modules for modules in HELD_OUT.values())


def violation(
    name: str,
    *,
    laws: str | tuple[str, ...],
    at: str | tuple[str, ...],
    wrong: str,
    source: str = "",
    link: str = "",
    ranks: int = 1,
    runs: int = 1,
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Puts a script that breaks a law into the catalogue. Raises KeyError for a law that is not in `LAWS`."""
    laws = (laws,) if isinstance(laws, str) else laws
    at = (at,) if isinstance(at, str) else at
    for law in laws:
        LAWS[law]

    def add(train: Callable[[], None]) -> Callable[[], None]:
        held = _is_held_out(train)
        facts = (_framework(train), train, laws, at, wrong, source, link, ranks, runs, held)
        return _added(train, Entry(name, *facts))

    return add


def clean(name: str, *, ranks: int = 1, runs: int = 1) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Puts a right training into the catalogue."""

    def add(train: Callable[[], None]) -> Callable[[], None]:
        held = _is_held_out(train)
        return _added(train, Entry(name, _framework(train), train, ranks=ranks, runs=runs, is_held_out=held))

    return add


def planted(
    name: str, *, laws: str | tuple[str, ...], at: str | tuple[str, ...], wrong: str, ranks: int = 1, runs: int = 1
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a script that is right with `right` into the catalogue twice: as it is, and repaired."""

    def add(script: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(script)
        def train() -> None:
            script()

        @functools.wraps(script)
        def repaired() -> None:
            script(right=True)

        violation(name, laws=laws, at=at, wrong=wrong, ranks=ranks, runs=runs)(train)
        clean(f"{name}: repaired", ranks=ranks, runs=runs)(repaired)
        return script

    return add


def catalogue(framework: str, *, is_held_out: bool | None = None) -> list[Entry]:
    """The entries of a framework, which is loaded. Raises ModuleNotFoundError without it.

    Args:
        framework: "torch" or "mindspore".
        is_held_out: only those written after the laws, or only those before; None for all.
    """
    modules: list[str] = []
    if is_held_out is not True:
        modules += MODULES[framework]
    if is_held_out is not False:
        modules += HELD_OUT[framework]
    found = []
    for module in modules:
        if module in HELD_OUT[framework] and importlib.util.find_spec(module) is None:
            continue  # they are written after the others were measured
        importlib.import_module(module)
        found += _entries.get(module, [])
    names = [entry.name for entry in found]
    assert len(names) == len(set(names)), "two entries of one name"
    return found
