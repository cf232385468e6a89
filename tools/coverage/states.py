"""What judges each public API, taken from the tables that a run itself asks, in the order in which it asks them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import random_apis, reason_not_judged
from pytest_msprobe.engines.torch_bindings import MissingInTorch, NoCounterpart, lookup
from tools.operators.mindspore_surface import PublicApi


class State(Enum):
    """How an API is judged; the value is the word of the page."""

    TORCH = "torch"
    MINDSPORE = "mindspore"
    REFERENCE = "reference"
    LAW = "law"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class CoveredApi:
    """A public API with its state.

    Attributes:
        api: the API.
        state: how it is judged.
        by: the PyTorch call, the reference or the law that judges it; for `NONE` the reason.
    """

    api: PublicApi
    state: State
    by: str


def covered(apis: Iterable[PublicApi]) -> Iterator[CoveredApi]:
    """The state of each API with the installed PyTorch."""
    for api in apis:
        state, by = _state(api)
        yield CoveredApi(api, state, by)


def _state(api: PublicApi) -> tuple[State, str]:
    # The attribute that held a Primitive stands before its class in a record.
    name = ApiName(api.type, f"_.{api.name}" if api.type == "Primitive" else api.name, 0)
    reason = reason_not_judged(name)
    if reason is not None:
        return State.NONE, reason
    law = random_apis().get(f"{api.type}.{api.name}")
    if law is not None:
        return State.LAW, law
    own = facts("references").find(api.type, api.name)
    if own is not None:
        return State.REFERENCE, own.text.partition("(")[0]
    return _benchmark(api)


def _benchmark(api: PublicApi) -> tuple[State, str]:
    found = lookup(api.type, api.name)
    if not isinstance(found, NoCounterpart):
        try:
            found.resolve(_roots())
        except MissingInTorch as error:
            reason = str(error)
        else:
            return State.TORCH, found.target
    else:
        reason = found.reason.partition(": ")[2]
    if facts("mindspore_cpu").find(api.type, api.name) is not None:
        return State.MINDSPORE, "CPU float64"
    return State.NONE, reason


@cache
def _roots() -> Mapping[str, object]:
    return {"torch": import_module("torch"), "adapters": import_module("pytest_msprobe.engines.adapters")}
