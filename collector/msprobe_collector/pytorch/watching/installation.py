"""What sees calls of APIs: the mode, and recording functions for what modes do not see."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from msprobe_collector.configuration import ApiList, ApiPlace
from msprobe_collector.pytorch.watching import communication, mode_stack
from msprobe_collector.pytorch.watching.api_calls import ApiCalls, CallMode
from msprobe_collector.pytorch.watching.compiled_regions import CompiledRegions
from msprobe_collector.recording.installation import ApiTarget, Installation

logger = logging.getLogger("msprobe_collector")


class ApiInstallation:
    """Puts in and takes out what sees calls."""

    def __init__(self, calls: ApiCalls, listed: ApiList) -> None:
        self._mode = CallMode(calls)
        self._compiled = CompiledRegions(self._mode)
        self._swapped = Installation(calls.wrapped, is_searched=_is_searched)
        self._listed = listed
        self._are_found = False

    def put_in(self) -> None:
        """See calls of this thread from now on."""
        if not self._are_found:
            self._are_found = True
            functions = [(*place, f"Distributed.{place[1]}") for place in communication.functions()]
            added = [(owner, name, f"{_prefix(place)}.{name}") for place, owner, name in _resolved(self._listed.add)]
            self._swapped.add([ApiTarget(owner, name, getattr(owner, name), call) for owner, name, call in functions + added])
        self._swapped.put_in()
        self._compiled.put_in()
        mode_stack.push(self._mode)

    def take_out(self) -> None:
        """See no more calls."""
        self._compiled.take_out()
        mode_stack.remove(self._mode)
        self._swapped.take_out()

    def add(self, owner: Any, name: str, call: str) -> None:
        """Record calls of `owner.name` as `call`."""
        self._swapped.add([ApiTarget(owner, name, getattr(owner, name), call)])

    def remove(self, owner: Any, name: str) -> bool:
        """Record them no more; False when they were not added."""
        return self._swapped.remove(owner, name)


def left_out(listed: ApiList) -> list[Any]:
    """The functions that the user's list removes."""
    return [getattr(owner, name) for _, owner, name in _resolved(listed.remove)]


def _resolved(places: Iterable[ApiPlace]) -> Iterator[tuple[ApiPlace, Any, str]]:
    for place in places:
        try:
            owner: Any = importlib.import_module(place.module)
        except ImportError:
            module, _, name = place.module.rpartition(".")
            try:
                owner = getattr(importlib.import_module(module), name, None)
            except (ImportError, ValueError):
                owner = None
        if callable(getattr(owner, place.name, None)):
            yield place, owner, place.name
        else:
            logger.warning("api_list: %s has no callable %s; it is passed over", place.module, place.name)


def _prefix(place: ApiPlace) -> str:
    return place.module.rpartition(".")[2]


def _is_searched(module: str) -> bool:
    return module.split(".")[0] not in ("torch", "torchgen", "functorch", "msprobe_collector")
