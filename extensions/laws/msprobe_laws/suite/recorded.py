"""What the records of an optimizer in a dump hold, as the laws take it."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.leaves import Leaf, flatten
from msprobe_collector.dump_format.values import PlainValue
from msprobe_laws.observation import Array, Clipping, Content, TensorPlace, Update, UpdatedParameter, coarsest_roundoff
from msprobe_laws.suite.steps import NotRecordedError
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF

#: Elements of a tensor that are looked at, and those of one that is small enough to be looked at as a whole.
_SAMPLE, _WHOLE = 4096, 1 << 16
_NOTHING: Array = np.empty(0)
_PLACE = re.compile(r"(input|output)\.(?:\d+\.)?(parameters|gradients|state)\.(.*)", re.DOTALL)


@dataclass(slots=True)
class _Tensors:
    """The tensors of one parameter in a record."""

    before: Leaf | None = None
    after: Leaf | None = None
    gradient: Leaf | None = None
    states_before: dict[str, Leaf] = field(default_factory=dict)
    states_after: dict[str, Leaf] = field(default_factory=dict)


def update_of(dump: Dump, record: str, number: int) -> Update:
    """Return the update that `record` holds; `number` counts the updates of its optimizer.

    Raises:
        DumpError: the record cannot be read.
        NotRecordedError: it holds no values, or no hyper-parameters.
    """
    content = dump.record(record)
    keywords = content.fields.get("input_kwargs")
    keywords = keywords if isinstance(keywords, dict) else {}
    groups = [item for item in _plain(keywords.get("settings")) or () if isinstance(item, Mapping)]
    law = _plain(keywords.get("law"))
    if not groups or not isinstance(law, Mapping):
        raise NotRecordedError("the record does not hold the hyper-parameters; dump again with this version")
    renamed = law.get("states")
    parameters = _tensors_of(flatten(content), renamed if isinstance(renamed, Mapping) else {})
    if not any(item.before is not None and item.before.data_name for item in parameters.values()):
        raise NotRecordedError("the dump holds statistics and no values; dump with the task tensor")
    counts = [int(group.get("parameters", 0) or 0) for group in groups]
    owners = [index for index, count in enumerate(counts) for _ in range(count)]
    updated = []
    for at, (name, item) in enumerate(parameters.items()):
        shape = getattr(item.before, "shape", ())
        index = _positions(name, math.prod(shape))
        before = _content(dump, item.before, item.states_before, index, shape)
        after = _content(dump, item.after or item.before, item.states_after, index, shape)
        if item.after is None or before.values.size != after.values.size:
            before.values = after.values = _NOTHING
        gradient = _read(dump, item.gradient, index, shape)
        if gradient is None and item.gradient is not None:
            gradient = _NOTHING
        is_trained = item.before is None or item.before.requires_grad != "False"
        group = owners[at] if at < len(owners) else 0
        dtype, is_term = dtype_of(item.gradient), _is_spread(item.gradient, "P")
        updated.append(UpdatedParameter(name, group, before, after, gradient, dtype, is_trained, is_term=is_term))
    optimizer, source = record.split(".")[1], str(dump.stacks.user_frame(record) or "")
    formula, unknown = (str(law.get(key) or "") for key in ("formula", "unknown"))
    precision = float(law.get("precision") or FLOAT32_ROUNDOFF)
    is_own = law.get("is_own") is True
    return Update(optimizer, formula, groups, updated, number, source, unknown, is_own, precision)


def zero_gradients_of(dump: Dump, record: str) -> dict[str, bool]:
    """Return whether the gradient is 0 in every element, by trainable parameter, as far as its statistics tell.

    Raises:
        DumpError: the record cannot be read.
    """
    is_zero = {}
    for name, item in _tensors_of(flatten(dump.record(record)), {}).items():
        gradient = getattr(item.gradient, "tensor", None)
        is_frozen = item.before is not None and item.before.requires_grad == "False"
        # Of a gradient that is spread over ranks, other elements are elsewhere.
        if gradient is not None and not is_frozen and gradient.spread is None and gradient.maximum is not None:
            is_zero[name] = gradient.maximum == 0 == gradient.minimum
    return is_zero


def clipping_of(dump: Dump, record: str) -> Clipping:
    """Return the clipping that `record` holds.

    Raises:
        DumpError: the record cannot be read.
        NotRecordedError: it holds no values.
    """
    leaves = flatten(dump.record(record))
    values: dict[str, Any] = {leaf.path: leaf for leaf in leaves}
    gradients = [leaf for leaf in leaves if leaf.path.startswith("input.gradients.") and leaf.tensor is not None]
    reported = next((leaf for leaf in leaves if leaf.path.startswith("output")), None)
    if not gradients or any(not leaf.data_name for leaf in gradients):
        raise NotRecordedError("the dump holds statistics and no values; dump with the task tensor")
    total, size, unknown = 0.0, 0, ""
    for leaf in gradients:
        assert leaf.tensor is not None
        if leaf.tensor.spread is not None:
            unknown = "gradients are spread over ranks"
        array = dump.tensors.load(leaf.tensor, leaf.place)
        total += float(np.sum(np.square(array.astype(np.float64, copy=False))))
        size += array.size
    norm_type = _number(values.get("input.norm_type"), 2.0)
    if norm_type != 2.0:
        unknown = f"gradients are clipped by the norm {norm_type:g}"
    norm = None
    if reported is not None and reported.tensor is not None and reported.data_name:
        norm = float(dump.tensors.load(reported.tensor, reported.place).reshape(-1)[0])
    elif reported is not None:
        norm = _number(reported, None)
    if norm is None:
        unknown = unknown or "the norm is not recorded"
    names = [leaf.path.removeprefix("input.gradients.") for leaf in gradients]
    limit = _number(values.get("input.max_norm"), float("inf"))
    unit = coarsest_roundoff(map(dtype_of, gradients))
    has_others = isinstance(dump.ranks, Mapping) and dump.ranks.get("world_size") != 1
    source = str(dump.stacks.user_frame(record) or "")
    return Clipping(names, total**0.5, None, norm, limit, size, unit, 1.0, source, unknown, has_others)


def _number(leaf: Leaf | None, otherwise: Any) -> Any:
    value = getattr(getattr(leaf, "value", None), "value", None)
    return float(value) if isinstance(value, (int, float)) else otherwise


def _tensors_of(leaves: list[Leaf], renamed: Mapping[str, Any]) -> dict[str, _Tensors]:
    """Return the tensors by parameter.

    `renamed` gives the names that formulas know states by, "" for those that are none.
    """
    tensors: dict[str, _Tensors] = {}
    for leaf in leaves:
        place = _PLACE.fullmatch(leaf.path)
        if place is None:
            continue
        side, what, name = place.groups()
        if what == "parameters":
            item = tensors.setdefault(name, _Tensors())
            item.before, item.after = (leaf, item.after) if side == "input" else (item.before, leaf)
        elif what == "gradients" and name in tensors:
            tensors[name].gradient = leaf if leaf.tensor is not None else None
        elif what == "state":
            owner, _, key = name.rpartition(".")
            key = str(renamed.get(key, key))
            if owner in tensors and key:
                item = tensors[owner]
                (item.states_before if side == "input" else item.states_after)[key] = leaf
    return tensors


def _content(dump: Dump, leaf: Leaf | None, states: Mapping[str, Leaf], index: Any, shape: tuple[int, ...]) -> Content:
    """Return what a parameter and its states hold, of the elements at `index`."""
    values = _read(dump, leaf, index, shape)
    place = TensorPlace(0, dtype_of(leaf), "", getattr(leaf, "shape", ()), _is_spread(leaf, "S"))
    content = Content(_NOTHING if values is None else values, place)
    for key, state in states.items():
        number = _number(state, None) if state.tensor is None else None
        array = _read(dump, state, index, shape) if number is None else np.array([number])
        if array is not None:
            content.states[key] = array
        if state.tensor is not None:
            content.state_places[key] = TensorPlace(0, dtype_of(state), "", state.shape)
    return content


def _read(dump: Dump, leaf: Leaf | None, index: Any, shape: tuple[int, ...]) -> Array | None:
    """Return the elements in float64: those at `index` where a tensor has the parameter's shape.

    None where none are held.
    """
    if leaf is None or leaf.tensor is None or not leaf.data_name:
        return None
    array = dump.tensors.load(leaf.tensor, leaf.place).reshape(-1)
    if array.dtype.kind == "c":
        return None
    if index is not None and leaf.shape == shape:
        array = array[index]
    elif array.size > _WHOLE:
        return None
    return array.astype(np.float64)


def elements_of(dump: Dump, leaf: Leaf, name: str) -> Array | None:
    """Return the elements of a tensor like the parameter `name` that `update_of` looks at; None where none are held."""
    return _read(dump, leaf, _positions(name, math.prod(leaf.shape)), leaf.shape)


def _positions(name: str, size: int) -> Any:
    """Return which elements of a parameter are looked at; None for all."""
    if size <= _WHOLE:
        return None
    generator = np.random.default_rng(zlib.crc32(name.encode("utf-8", "replace")))
    return np.sort(generator.integers(0, size, _SAMPLE))


def dtype_of(leaf: Leaf | None) -> str:
    """`float32`; "" for what is no tensor."""
    dtype = getattr(getattr(leaf, "tensor", None), "dtype", None)
    return "" if dtype is None else dtype.name.lower().rpartition(".")[2]


def _is_spread(leaf: Leaf | None, placement: str) -> bool:
    """Return whether a DTensor has a placement that begins so: `S` of shards, `P` of terms."""
    spread = getattr(getattr(leaf, "tensor", None), "spread", None)
    return spread is not None and any(text.startswith(placement) for text in spread.placements)


def _plain(value: Any) -> Any:
    """Return a value of a record as builtin types; None for what has none, such as a tensor."""
    if isinstance(value, PlainValue):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return None
