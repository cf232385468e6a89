"""Averages of parameters that a script keeps itself: objects with a decay and as many tensors as the optimizer has."""

from __future__ import annotations

import dis
import gc
import inspect
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from msprobe_laws.law import Checked, Step, Unchecked, Violation
from msprobe_laws.observation import Array
from msprobe_laws.pytorch.tensors import dtype_of, local_part, some
from msprobe_laws.session import LawSession
from msprobe_laws.training import EMA_DECAY
from pytest_msprobe.numerics.dtypes import unit_roundoff
from pytest_msprobe.numerics.expected import Absolute, Relative, Roundoffs, Share

_DECAYS = ("decay", "ema_decay", "beta", "alpha", "momentum", "tau")
#: Those that are decays of an average wherever they stand.
_SAID = ("decay", "ema_decay", "tau", "momentum")
_ELEMENTS = 32
#: Steps at which averages are looked for.
_LOOKS = (0, 3)
#: Updates that settle a share.
_ENOUGH = 3
#: Steps in which the share of an average that is no longer warming up stays as it is.
_SETTLED = 8


class _Average:
    """One average: where its tensors are, in the order of the parameters.

    Attributes:
        name: of its class.
        before: elements of its tensors at the step before.
        largest: share of itself that it has kept, at most.
        shares: those of the last steps.
        declared: its decays by attribute when it was found.
        first: share of itself that it has kept in its first update.
        constant: in how many updates it has kept that; negative when it has not.
        rests: steps since its last update.
    """

    def __init__(self, owner: Any, attribute: str) -> None:
        self._owner, self._attribute = weakref.ref(owner), attribute
        self.name = type(owner).__name__
        self.before: list[Array] = []
        self.largest = -1.0
        self.shares: deque[float] = deque(maxlen=_SETTLED)
        self.declared = _decays_of(owner)
        self.first: float | None = None
        self.constant, self.rests = 0, 1

    def undeclared(self, share: float) -> str:
        """Return what it keeps of itself where that is, from its first update on, no decay of its object.

        "" where it is.
        """
        declared = {**self.declared, **_decays_of(self._owner())}.items()
        values = [max(value, 1 - value) for name, value in declared if name in _SAID and 0 < value < 1]
        decays = [*values, *(value**self.rests for value in values)]
        self.first = share if self.first is None else self.first
        is_other = share > Relative.COPY and not any(_is_near(share, decay) for decay in decays)
        # A decay that warms up changes; a copy keeps nothing on purpose.
        self.constant = self.constant + 1 if is_other and _is_near(share, self.first) else -(10**9)
        if self.constant != _ENOUGH or not decays:
            return ""
        others = f": {share:.4g} and {1 - share:.4g} are exchanged" if _is_near(1 - share, decays[0]) else ""
        return f"the average keeps {share:.4g} of itself, and its object declares {decays[0]:.4g}{others}"

    def is_off(self, value: Array, before: Array, taken: Array, unit: float) -> bool:
        """Return whether a value is its decay times that before and a share of the parameter that is not the rest."""
        for decay in [value for name, value in _decays_of(self._owner()).items() if name in _SAID and 0 < value < 1]:
            rest, size = value - decay * before, np.abs(before) + np.abs(taken)
            clear = np.abs(taken) > Relative.CLEAR_PART * size
            shares = (rest / np.where(clear, taken, 1.0))[clear]
            middle = float(np.median(shares)) if shares.size >= 4 else 0.0
            alike = np.abs(shares - middle) * np.abs(taken[clear]) <= Roundoffs.AVERAGE * unit * size[clear]
            if (
                Relative.COPY < middle < 1 - Relative.COPY
                and not _is_near(1 - middle, decay)
                and np.mean(alike) > Share.OF_AVERAGE
            ):
                return True
        return False

    def lost_decay(self) -> str:
        """Return what has become of the decay that it was made with, which its own update has replaced.

        "" for nothing.
        """
        owner = self._owner()
        settled = min(self.shares, default=0.0)
        if owner is None or len(self.shares) < _SETTLED or max(self.shares) - settled > Relative.SETTLED_SHARE:
            return ""
        for name, value in _decays_of(owner).items():
            was = self.declared.get(name, value)
            if was - settled > Relative.SHARE_OF_AVERAGE and value != was and _feeds_on_itself(type(owner), name):
                return (
                    f"the average keeps {settled:.4g} of itself, and its {name} was {was:.4g}: its update computes the "
                    f"{name} from that of the step before, which is {value:.4g} by now"
                )
        return ""

    def judged(self, shares: Mapping[str, float]) -> tuple[list[str], str]:
        """Return (parameters, what is wrong with the shares of itself that the average has kept); "" for nothing."""
        names = list(shares)
        if all(abs(1 - share) < self.least for share in shares.values()):
            return names, "the average is written, and takes nothing of the parameter (is it computed from itself?)"
        middle = float(np.median(list(shares.values())))
        low, high = -Relative.SHARE_OF_AVERAGE, 1 + Relative.AWAY_FROM_PARAMETER
        away = [name for name, share in shares.items() if not low <= share <= high]
        if away:
            return away, f"the average moves away from the parameter: {shares[away[0]]:.4g} times as far as before"
        odd = [name for name, share in shares.items() if abs(share - middle) > Relative.SHARE_OF_AVERAGE]
        if odd and len(odd) < len(shares) / 2:
            return odd, f"its average keeps {shares[odd[0]]:.4g} of itself, those of the others {middle:.4g}"
        self.shares.append(middle)
        if message := self.undeclared(middle):
            return names, message
        self.rests = 1
        if message := self.lost_decay():
            return names, message
        fell, self.largest = self.largest - middle, max(self.largest, middle)
        if fell <= Relative.SHARE_OF_AVERAGE or odd:
            return names, ""
        return names, f"the average keeps {middle:.4g} of itself, and kept {self.largest:.4g} in an earlier step"

    @property
    def least(self) -> float:
        """A share of the parameter that is none, whether its decay is that of the average or of the parameter."""
        decays = [value for name, value in _decays_of(self._owner()).items() if "decay" in name]
        if not decays:
            return 0.0
        return min([Relative.SAME_SHARE, *(Share.OF_DECAY * min(value, 1 - value) for value in decays)])

    def is_same(self, other: _Average) -> bool:
        """Return whether both are one."""
        return self._owner() is other._owner() and self._attribute == other._attribute

    def tensors(self) -> list[Any]:
        """Return its tensors; [] when it is gone."""
        owner = self._owner()
        return [] if owner is None else _tensors_of(vars(owner).get(self._attribute, None), owner, self._attribute)


class Averages:
    """Compares each average with what its last value and the parameters give."""

    def __init__(self, session: LawSession) -> None:
        """Know none yet."""
        self._session = session
        #: By optimizer: averages of tensors like its parameters, and elements of the parameters after its last step.
        self._known: dict[str, list[_Average]] = {}
        self._left: dict[str, dict[int, Array]] = {}

    def step_begins(self, step: Step) -> None:
        """Compare averages, which were updated since the last step from the parameters as they are."""
        items = [item for item in step.parameters.values() if local_part(item) is not None]
        averages = self._known.setdefault(step.name, [])
        if step.number in _LOOKS:
            averages += [item for item in _averages_of(items) if not any(map(item.is_same, averages))]
        for average in averages:
            tensors = average.tensors()
            if _shapes_of(tensors) != _shapes_of(items):
                continue
            now = [_elements(tensor) for tensor in tensors]
            if average.before:
                result = self._compare(step, average, items, now)
                if result is not None:
                    self._session.say(EMA_DECAY, average.name, result, source=step.source, step=step.number)
            average.before = now

    def step_ended(self, optimizer: str, parameters: Sequence[Any]) -> None:
        """Note the parameters, which an average takes unless something else changes them."""
        if self._known.get(optimizer):
            self._left[optimizer] = {id(item): _elements(item) for item in parameters if local_part(item) is not None}

    def _compare(self, step: Step, average: _Average, items: Sequence[Any], now: list[Array]) -> Checked | None:
        after_step = self._left.get(step.name, {})
        shares: dict[str, float] = {}
        replaced, unknown, off = [], [], []
        for item, tensor, value, before in zip(items, average.tensors(), now, average.before):
            name, current, unit = step.names.get(id(item), ""), _elements(item), unit_roundoff(dtype_of(tensor))
            taken = after_step.get(id(item), current)
            if not np.array_equal(taken, current) and np.array_equal(current, value):
                replaced.append(name)
            share = _share(value, before, taken, unit)
            if share is None:
                share = _share(value, before, current, unit)
            if share is not None:
                shares[name] = share
                continue
            unknown.append(name)
            if average.is_off(value, before, current, unit):
                off.append(name)
        if off:
            message = "the shares of the average and of the parameter in it do not add up to 1"
            return [Violation.of(EMA_DECAY, off, message)]
        if len(unknown) > len(items) / 2:
            return Unchecked("tensors like the parameters are no mix of their last values and the parameters")
        if replaced:
            message = "training goes on with the average in its place: the values of the step before are lost"
            return [Violation.of(EMA_DECAY, replaced, message)]
        shares = {name: share for name, share in shares.items() if not np.isnan(share)}
        if not shares or all(map(np.array_equal, now, average.before)):
            average.rests += 1
            return None
        names, message = average.judged(shares)
        return [Violation.of(EMA_DECAY, names, message)] if message else []


def _is_near(share: float, other: float) -> bool:
    return abs(share - other) <= Relative.DECLARED_SHARE * min(1 - share, 1 - other) + Relative.SAME_SHARE


def _share(value: Array, before: Array, taken: Array, unit: float) -> float | None:
    """Return the share of an average in its successor.

    NaN where it cannot be seen, None where there is no one share.
    """
    distance, size = before - taken, np.abs(before) + np.abs(taken)
    clear = np.abs(distance) > Relative.CLEAR_DISTANCE * size + Absolute.CLEAR_DISTANCE
    if np.count_nonzero(clear) < 4:
        return float("nan")
    shares = ((value - taken) / np.where(clear, distance, 1.0))[clear]
    middle = float(np.median(shares))
    alike = np.abs(shares - middle) <= Roundoffs.AVERAGE * unit * size[clear] / np.abs(distance[clear])
    return middle if np.mean(alike) > Share.OF_AVERAGE else None


def _averages_of(items: Sequence[Any]) -> Iterator[_Average]:
    """Return the objects that keep an average of these parameters."""
    shapes, ids = _shapes_of(items), set(map(id, items))
    may_keep: dict[int, bool] = {}  # each class is asked once: there are many more objects
    for owner in gc.get_objects():
        kind = type(owner)
        if (may := may_keep.get(id(kind))) is None:
            may = may_keep[id(kind)] = _may_keep(kind)
        if not may:
            continue
        held = getattr(owner, "__dict__", None)
        if not isinstance(held, dict) or not _decays_of(owner):
            continue
        for attribute, value in [*held.items(), *(held.get("_modules") or {}).items()]:
            tensors = _tensors_of(value, owner, attribute)
            if _shapes_of(tensors) == shapes and not any(id(tensor) in ids for tensor in tensors):
                yield _Average(owner, attribute)


def _may_keep(kind: type) -> bool:
    # Classes of extensions may have no text there.
    if str(kind.__module__).partition(".")[0] in ("builtins", "torch", "msprobe_collector"):
        return False
    # A proxy would be asked for what it stands for, which may be gone.
    return not issubclass(kind, (torch.optim.Optimizer, weakref.ProxyType, weakref.CallableProxyType))


def _decays_of(owner: Any) -> dict[str, float]:
    return {name: value for name in _DECAYS if isinstance(value := getattr(owner, "__dict__", {}).get(name), float)}


def _feeds_on_itself(kind: type, name: str) -> bool:
    """Return whether a method of the class reads the attribute before it writes it: x.name = f(x.name)."""
    for method in (method for base in kind.__mro__ for method in vars(base).values()):
        if not inspect.isfunction(method) or not inspect.isfunction(inner := inspect.unwrap(method)):
            continue
        opcodes = [step.opname for step in dis.get_instructions(inner) if step.argval == name]
        uses = [opcode for opcode in opcodes if "ATTR" in opcode]
        if uses[:1] == ["LOAD_ATTR"] and "STORE_ATTR" in uses:
            return True
    return False


def _tensors_of(value: Any, owner: Any, attribute: str) -> list[Any]:
    if value is None:
        value = (vars(owner).get("_modules") or {}).get(attribute)
    if isinstance(value, nn.Module):
        value = list(value.parameters())
    elif isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, (list, tuple)) or not value:
        return []
    are_tensors = all(isinstance(item, torch.Tensor) for item in value)
    return list(value) if are_tensors else []


def _shapes_of(tensors: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(item.shape) for item in tensors]


def _elements(tensor: Any) -> Array:
    local = local_part(tensor)
    array: Array = np.empty(0) if local is None else some(local, _ELEMENTS).double().cpu().numpy().copy()
    return array
