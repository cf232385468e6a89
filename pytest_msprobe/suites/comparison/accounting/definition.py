"""How two sides call one operation: other APIs, other arguments, other dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msprobe_collector.dump_format import find_dtype
from msprobe_collector.dump_format.leaves import canonical_dtype
from pytest_msprobe.engines.protocol import Array, Call, LeafPath, map_attributes, map_leaves
from pytest_msprobe.suites.comparison.naming import tensor_order
from pytest_msprobe.suites.comparison.value_comparison import ValueComparison

Tensors: TypeAlias = Mapping[LeafPath, Array]


def definition(target: Call, golden: Call) -> str:
    """How two calls differ beside the values of their tensors, as one line; "" when they do not."""
    left, right = _plain(target), _plain(golden)
    if (target.framework, target.api.type, target.api.api) != (golden.framework, golden.api.type, golden.api.api):
        named = f"{target.api.type}.{target.api.api} ({target.framework}) against " + (
            f"{golden.api.type}.{golden.api.api} ({golden.framework})"
        )
        mine, theirs = _only_in(left, right), _only_in(right, left)
        return f"{named}, with {mine or 'defaults'} against {theirs or 'defaults'}" if mine or theirs else named
    differing = [
        f"{name} {left.get(name, 'absent')} against {right.get(name, 'absent')}"
        for name in dict.fromkeys((*left, *right))
        if left.get(name) != right.get(name)
    ]
    return ", ".join(differing)


def _only_in(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Arguments that are not tensors and that the other API does not get in any place."""
    return ", ".join(value for value in one.values() if value not in (*other.values(), "tensor", "None"))


def _plain(call: Call) -> dict[str, str]:
    """Arguments and attributes that are not tensors, as text, by their place."""
    found: dict[str, str] = {}

    def note(path: LeafPath, value: object) -> None:
        is_tensor = hasattr(value, "__array_interface__")
        found[".".join(map(str, path))] = "tensor" if is_tensor else repr(getattr(value, "name", value))

    map_leaves(call, note)
    map_attributes(call, note)
    return found


def placed(calls: tuple[Call, Call], target: Tensors, golden: Tensors) -> dict[LeafPath, Array] | None:
    """The golden tensors at the target's places: those of equal name, else in order; None when shapes do not fit.

    Integers get the target's dtype: an API may take one width only.
    """
    orders = [tensor_order(f"{call.api.type}.{call.api.table_name}", call.framework) for call in calls]
    if any(orders) and len(target) == len(golden):
        at = [_in_order(list(tensors), order) for tensors, order in zip((target, golden), orders)]
        names = dict(zip(*at))
    else:
        names = dict(zip(target, target if target.keys() == golden.keys() else golden))
    found = {path: _of_width(golden[names[path]], target[path]) for path in target if path in names}
    fits = len(target) == len(golden) and all(target[path].shape == found[path].shape for path in target)
    return found if fits else None


def _in_order(places: Sequence[LeafPath], order: Sequence[int]) -> list[LeafPath]:
    """`places` as PyTorch orders the tensors that stand there."""
    return [
        place
        for _, place in sorted(enumerate(places), key=lambda item: (*order, *range(len(order), len(places)))[item[0]])
    ]


def _of_width(array: Array, other: Array) -> Array:
    return array.astype(other.dtype) if array.dtype.kind in "iu" and other.dtype.kind in "iu" else array


def dtype_change(values: Sequence[ValueComparison]) -> tuple[str, bool]:
    """(how the dtypes of outputs differ, whether those of the inputs do not); ("", False) when outputs agree."""
    tensors = [
        (value, canonical_dtype(value.target.dtype), canonical_dtype(value.golden.dtype))
        for value in values
        if value.target is not None
        and value.golden is not None
        and value.target.tensor is not None
        and value.golden.tensor is not None
    ]
    outputs = [(left, right) for value, left, right in tensors if value.is_output]
    inputs = [(left, right) for value, left, right in tensors if not value.is_output and _is_float(left)]
    changed = next(
        (f"{left} against {right}" for left, right in outputs if left != right and not _are_integers(left, right)), ""
    )
    return changed, bool(changed and inputs) and all(left == right for left, right in inputs)


def _is_float(dtype: str) -> bool:
    found = find_dtype(dtype)
    return found is not None and found.kind in ("float", "complex")


def _are_integers(*dtypes: str) -> bool:
    found = [find_dtype(dtype) for dtype in dtypes]
    return all(dtype is not None and dtype.kind == "int" for dtype in found)
