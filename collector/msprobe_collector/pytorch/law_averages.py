"""Averages of parameters that a script keeps itself: objects with a decay and as many tensors as the optimizer has."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from msprobe_collector.laws.law import Finding, Unchecked
from msprobe_collector.laws.observation import Array
from msprobe_collector.laws.session import LawSession
from msprobe_collector.laws.training import EMA_DECAY
from msprobe_collector.pytorch.law_tensors import local_part, some

_DECAYS = ("decay", "ema_decay", "beta", "alpha", "momentum")
_ELEMENTS = 32
#: Steps at which averages are looked for.
_LOOKS = (1, 3)
#: By how much the share of the average in its successor may differ between parameters, and fall.
_ALIKE = 0.02


class _Average:
    """One average: where its tensors are, in the order of the parameters."""

    def __init__(self, owner: Any, attribute: str) -> None:
        self._owner, self._attribute = weakref.ref(owner), attribute
        self.name = type(owner).__name__
        self.before: list[Array] = []
        self.largest = -1.0

    def tensors(self) -> list[Any]:
        """Its tensors; [] when it is gone."""
        owner = self._owner()
        return [] if owner is None else _tensors_of(vars(owner).get(self._attribute, None), owner, self._attribute)


class Averages:
    """Compares each average with what its last value and the parameters give."""

    def __init__(self, session: LawSession) -> None:
        """Know none yet."""
        self._session = session
        self._known: list[_Average] = []
        self._left: dict[int, Array] = {}

    def step_begins(self, parameters: Mapping[int, Any], names: Mapping[int, str], number: int, source: str) -> None:
        """A step begins: averages were updated since the last one, from the parameters as they are."""
        items = [item for item in parameters.values() if local_part(item) is not None]
        if number in _LOOKS:
            known = {(average.name, average._attribute) for average in self._known}
            self._known += [one for one in _found(items) if (one.name, one._attribute) not in known]
        for average in self._known:
            tensors = average.tensors()
            if [tuple(one.shape) for one in tensors] != [tuple(item.shape) for item in items]:
                continue
            now = [_elements(one) for one in tensors]
            if average.before:
                result = self._compare(average, now, items, names)
                if result is not None:
                    self._session.say(EMA_DECAY, average.name, result, source=source, step=number)
            average.before = now

    def step_ended(self, parameters: Sequence[Any]) -> None:
        """A step is over: its parameters are what an average takes, unless something else changes them."""
        if self._known:
            self._left = {id(item): _elements(item) for item in parameters if local_part(item) is not None}

    def _compare(
        self, average: _Average, now: list[Array], items: Sequence[Any], names: Mapping[int, str]
    ) -> list[Finding] | Unchecked | None:
        shares: dict[str, float] = {}
        replaced = []
        for value, before, item in zip(now, average.before, items):
            name, current = names.get(id(item), ""), _elements(item)
            left = self._left.get(id(item))
            if left is not None and not np.array_equal(left, current) and np.array_equal(current, value):
                replaced.append(name)
            taken = current if left is None or np.array_equal(left, current) else left
            distance = before - taken
            clear = np.abs(distance) > 2.0**-12 * (np.abs(before) + np.abs(taken)) + 1e-12
            if np.count_nonzero(clear) >= 4:
                shares[name] = float(np.median(((value - taken)[clear]) / distance[clear]))
        if replaced:
            message = "training goes on with the average in its place: the values of the step before are lost"
            return [Finding(EMA_DECAY, replaced[0], message, None, tuple(replaced[1:]))]
        if not shares or all(share == 1.0 for share in shares.values()):
            return None
        middle = float(np.median(list(shares.values())))
        away = [name for name, share in shares.items() if not -_ALIKE <= share <= 1 + 1e-4]
        if away:
            message = f"the average moves away from the parameter: {shares[away[0]]:.4g} times as far as before"
            return [Finding(EMA_DECAY, away[0], message, None, tuple(away[1:]))]
        odd = [name for name, share in shares.items() if abs(share - middle) > _ALIKE]
        if odd and len(odd) < len(shares) / 2:
            message = f"its average keeps {shares[odd[0]]:.4g} of itself, those of the others {middle:.4g}"
            return [Finding(EMA_DECAY, odd[0], message, None, tuple(odd[1:]))]
        fell = average.largest - middle
        average.largest = max(average.largest, middle)
        if fell > _ALIKE and not odd:
            name = next(iter(shares))
            message = f"the average keeps {middle:.4g} of itself, and kept {average.largest:.4g} in an earlier step"
            return [Finding(EMA_DECAY, name, message, None, tuple(list(shares)[1:]))]
        return []


def _found(items: Sequence[Any]) -> Iterator[_Average]:
    """Objects that keep an average of these parameters."""
    shapes, ids = [tuple(item.shape) for item in items], {id(item) for item in items}
    for owner in gc.get_objects():
        kind = type(owner)
        if kind.__module__.partition(".")[0] in ("builtins", "torch", "msprobe_collector") or not hasattr(
            kind, "__dict__"
        ):
            continue
        held = getattr(owner, "__dict__", None)
        if not isinstance(held, dict) or not any(isinstance(held.get(name), float) for name in _DECAYS):
            continue
        if issubclass(kind, torch.optim.Optimizer):
            continue
        for attribute, value in [*held.items(), *(held.get("_modules") or {}).items()]:
            tensors = _tensors_of(value, owner, attribute)
            is_like = len(tensors) == len(shapes) and [tuple(one.shape) for one in tensors] == shapes
            if is_like and not any(id(one) in ids for one in tensors):
                yield _Average(owner, attribute)


def _tensors_of(value: Any, owner: Any, attribute: str) -> list[Any]:
    if value is None:
        value = (vars(owner).get("_modules") or {}).get(attribute)
    if isinstance(value, nn.Module):
        value = list(value.parameters())
    elif isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, (list, tuple)) or not value:
        return []
    return list(value) if all(isinstance(one, torch.Tensor) for one in value) else []


def _elements(tensor: Any) -> Array:
    local = local_part(tensor)
    array: Array = np.empty(0) if local is None else some(local, _ELEMENTS).double().cpu().numpy().copy()
    return array
