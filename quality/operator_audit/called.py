"""Every operator of the tables, called with strings, integers and tensors as no engine would: nothing may happen."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import mindspore
import torch
from audit_watch import Watch

from pytest_msprobe.apis.operators import find_operator, operator_names
from pytest_msprobe.engines import adapters
from pytest_msprobe.engines.mindspore_engine import found_at, instance_of, method_of
from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.torch_bindings import MissingInTorch, NoCounterpart, lookup, names
from quality.operator_audit.names import TYPES

Caller = Callable[..., object]


def operators() -> list[tuple[str, str, str]]:
    """(framework of the dump, API type, name) of everything that an engine may call."""
    found = [("mindspore", *name) for name in operator_names("mindspore")]
    found += [("mindspore", kind, name) for kind in TYPES["mindspore"] for name in names(kind)]
    found += [("pytorch", *name) for name in operator_names("torch")]
    return list(dict.fromkeys(found))


def call_operators(watch: Watch, first: int, *, every: int, canary: str) -> Iterator[tuple[int, Counter[str]]]:
    """(number, counts) of every n-th operator from number `first` on: no counts before it is called, then its own."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.runtime.launch_blocking()
    warnings.simplefilter("ignore")
    for number, (framework, api_type, name) in enumerate(operators()):
        if number < first or number % every:
            continue
        yield number, Counter()
        lookup(api_type, name, framework)  # reads our own table
        callers: list[tuple[Caller, Callable[[], Any]]] = []
        counts = Counter(operators=1)
        with watch.armed(), suppress(Exception):
            callers = [*_callers(framework, api_type, name)]
        for caller, tensor in callers:
            for arguments in _arguments(tensor, canary):
                with watch.armed(), suppress(Exception):
                    caller(*arguments)
                counts["calls"] += 1
        events = watch.take()
        counts["events"] += len(events)
        for event in events:
            print(f"{framework} {api_type}.{name}: {event}")
        yield number, counts


def _callers(framework: str, api_type: str, name: str) -> Iterator[tuple[Caller, Callable[[], Any]]]:
    """(callable, maker of a tensor for it) of each engine that has one."""
    binding = lookup(api_type, name, framework)
    if not isinstance(binding, NoCounterpart):
        with suppress(MissingInTorch):
            yield binding.resolve({"torch": torch, "adapters": adapters}), _torch_tensor
    if framework == "mindspore" and (path := find_operator("mindspore", api_type, name)) is not None:
        with suppress(Unsupported):
            yield _in_mindspore(api_type, path), _mindspore_tensor


def _in_mindspore(api_type: str, path: str) -> Caller:
    if api_type == "Tensor":
        return method_of(mindspore.Tensor, path.rpartition(".")[2])
    found: Caller | None = found_at(mindspore, path)
    if found is None:
        raise Unsupported("not in this version")
    return _made(found) if api_type == "Primitive" else found


def _made(kind: Any) -> Caller:
    """Makes an instance of a Primitive as it is called: with each attribute the first argument, then calls it."""
    names = list(inspect.signature(kind.__init__).parameters)[1:]

    def call(*arguments: Any) -> object:
        for given in (dict.fromkeys(names, arguments[0]), dict.fromkeys(names, 1), dict.fromkeys(names, (1, 1))):
            with suppress(Exception):
                instance_of(kind, given)(*arguments)
        return None

    return call


def _arguments(tensor: Callable[[], Any], canary: str) -> Iterator[tuple[Any, ...]]:
    yield (canary,)
    yield (3,)
    yield (tensor(),)
    yield tensor(), canary
    yield tensor(), 1
    yield tensor(), tensor()
    yield canary, tensor()
    yield tensor(), 0, canary
    yield tensor(), tensor(), tensor()
    yield (), canary


def _torch_tensor() -> Any:
    return torch.full((2, 2), 0.5)


def _mindspore_tensor() -> Any:
    return mindspore.Tensor([[0.5, 0.5], [0.5, 0.5]], mindspore.float32)
