"""What the records of an optimizer in a dump hold, as the laws take it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.leaves import Leaf, flatten
from msprobe_collector.dump_format.records import is_optimizer_record
from msprobe_collector.dump_format.values import PlainValue

if TYPE_CHECKING:
    from msprobe_laws.observation import Array, Clipping, Update

#: Elements of a tensor that are looked at, and those of one that is small enough to be looked at as a whole.
_SAMPLE, _WHOLE = 4096, 1 << 16
CLIP = "Optimizer.clip_grad_norm"
_PLACE = re.compile(r"(input|output)\.(?:\d+\.)?(parameters|gradients|state)\.(.*)", re.DOTALL)


class NotRecordedError(Exception):
    """Why a record does not hold what a law needs, as one line."""


@dataclass(slots=True)
class _Tensors:
    """The tensors of one parameter in a record."""

    before: Leaf | None = None
    after: Leaf | None = None
    gradient: Leaf | None = None
    has_gradient: bool = False
    state_before: dict[str, Leaf] = field(default_factory=dict)
    state_after: dict[str, Leaf] = field(default_factory=dict)


def update_of(dump: Dump, record: str, number: int) -> Update:
    """The update that `record` holds; `number` counts the updates of its optimizer.

    Raises:
        DumpError: the record cannot be read.
        NotRecordedError: it holds no values, or no hyper-parameters.
    """
    from msprobe_laws.observation import Place, Update, UpdatedParameter

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
    found = []
    for at, (name, item) in enumerate(parameters.items()):
        shape = item.before.shape if item.before is not None else ()
        size = _size_of(shape)
        index = _positions(name, size)
        before, after, gradient = (_read(dump, leaf, index, shape) for leaf in (item.before, item.after, item.gradient))
        unread = _empty()
        is_pair = before is not None and after is not None and before.size == after.size
        dtype = dtype_of(item.before)
        found.append(
            UpdatedParameter(
                name,
                owners[at] if at < len(owners) else 0,
                shape,
                before if is_pair and before is not None else unread,
                after if is_pair and after is not None else unread,
                None if not item.has_gradient else unread if gradient is None else gradient,
                _states(dump, item.state_before, index, shape),
                _states(dump, item.state_after, index, shape),
                index is None,
                Place(0, dtype, "", shape),
                Place(0, dtype_of(item.after) or dtype, "", item.after.shape if item.after is not None else shape),
                dtype_of(item.gradient),
                {
                    key: Place(0, dtype_of(leaf), "", leaf.shape)
                    for key, leaf in item.state_after.items()
                    if leaf.tensor
                },
                item.before is None or item.before.requires_grad != "False",
                size,
            )
        )
    frame = dump.stacks.user_frame(record)
    return Update(
        record.split(".")[1],
        str(law.get("formula") or ""),
        groups,
        found,
        number,
        "" if frame is None else str(frame),
        str(law.get("unknown") or ""),
        law.get("is_own") is True,
        float(law.get("precision") or 2.0**-24),
    )


def zero_gradients_of(dump: Dump, record: str) -> dict[str, bool]:
    """Whether the gradient is 0 in every element, by trainable parameter, as far as its statistics tell.

    Raises:
        DumpError: the record cannot be read.
    """
    found = {}
    for name, item in _tensors_of(flatten(dump.record(record)), {}).items():
        gradient = item.gradient.tensor if item.gradient is not None else None
        is_frozen = item.before is not None and item.before.requires_grad == "False"
        # Of a gradient that is spread over ranks, other elements are elsewhere.
        if gradient is not None and not is_frozen and gradient.spread is None and gradient.maximum is not None:
            found[name] = gradient.maximum == 0 == gradient.minimum
    return found


def clipping_of(dump: Dump, record: str) -> Clipping:
    """The clipping that `record` holds.

    Raises:
        DumpError: the record cannot be read.
        NotRecordedError: it holds no values.
    """
    import numpy as np

    from msprobe_laws.observation import Clipping

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
    found = None
    if reported is not None and reported.tensor is not None and reported.data_name:
        found = float(dump.tensors.load(reported.tensor, reported.place).reshape(-1)[0])
    elif reported is not None:
        found = _number(reported, None)
    frame = dump.stacks.user_frame(record)
    return Clipping(
        [leaf.path.removeprefix("input.gradients.") for leaf in gradients],
        total**0.5,
        None,
        found,
        _number(values.get("input.max_norm"), float("inf")),
        norm_type,
        size,
        max((dtype_of(leaf) for leaf in gradients), key=("float64", "float32", "float16", "bfloat16").index),
        source="" if frame is None else str(frame),
        unknown=unknown or ("" if found is not None else "the norm is not recorded"),
    )


def _number(leaf: Leaf | None, otherwise: Any) -> Any:
    value = getattr(leaf.value, "value", None) if leaf is not None else None
    return float(value) if isinstance(value, (int, float)) else otherwise


def _tensors_of(leaves: list[Leaf], renamed: Mapping[str, Any]) -> dict[str, _Tensors]:
    """The tensors by parameter; `renamed` gives the names that formulas know states by, "" for those that are none."""
    found: dict[str, _Tensors] = {}
    for leaf in leaves:
        place = _PLACE.fullmatch(leaf.path)
        if place is None:
            continue
        side, what, name = place.groups()
        if what == "parameters":
            item = found.setdefault(name, _Tensors())
            if side == "input":
                item.before = leaf
            else:
                item.after = leaf
        elif what == "gradients" and name in found:
            found[name].gradient = leaf if leaf.tensor is not None else None
            found[name].has_gradient = leaf.tensor is not None
        elif what == "state":
            owner, _, key = name.rpartition(".")
            key = str(renamed.get(key, key))
            if owner in found and key:
                (found[owner].state_before if side == "input" else found[owner].state_after)[key] = leaf
    return found


def _states(dump: Dump, leaves: Mapping[str, Leaf], index: Any, shape: tuple[int, ...]) -> dict[str, Array]:
    import numpy as np

    found = {}
    for key, leaf in leaves.items():
        if leaf.tensor is None:
            number = _number(leaf, None)
            if number is not None:
                found[key] = np.array([number])
            continue
        array = _read(dump, leaf, index, shape)
        if array is not None:
            found[key] = array
    return found


def _read(dump: Dump, leaf: Leaf | None, index: Any, shape: tuple[int, ...]) -> Array | None:
    """Elements in float64: those at `index` where a tensor has the parameter's shape; None where none are held."""
    import numpy as np

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
    """The elements of a tensor like the parameter `name` that `update_of` looks at; None where none are held."""
    return _read(dump, leaf, _positions(name, _size_of(leaf.shape)), leaf.shape)


def _positions(name: str, size: int) -> Any:
    """Which elements of a parameter are looked at; None for all."""
    import numpy as np

    if size <= _WHOLE:
        return None
    generator = np.random.default_rng(zlib.crc32(name.encode("utf-8", "replace")))
    return np.sort(generator.integers(0, size, _SAMPLE))


def _empty() -> Array:
    import numpy as np

    return np.empty(0)


def _size_of(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def dtype_of(leaf: Leaf | None) -> str:
    """`float32`; "" for what is no tensor."""
    tensor = leaf.tensor if leaf is not None else None
    return "" if tensor is None or tensor.dtype is None else tensor.dtype.name.lower().rpartition(".")[2]


def _plain(value: Any) -> Any:
    """A value of a record as builtin types; None for what has none, such as a tensor."""
    if isinstance(value, PlainValue):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return None


def names(dump: Dump) -> Iterator[str]:
    """Records of optimizers, in order."""
    yield from (name for name in dump.record_names if is_optimizer_record(name))
