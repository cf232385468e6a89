"""Faults in how a result was computed: found by computing otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.dtypes import round_once
from quality.verdict_quality.recordings import attempt, is_float, leaf_of
from quality.verdict_quality.target import Target
from quality.verdict_quality.wrong_results import NARROWER, to_bits


def narrower_inputs(target: Target) -> Array | None:
    """Arguments rounded so before an exact computation: what an HF32 matrix unit does to float32."""
    if not is_float(target.right):
        return None

    def narrowed(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.name in NARROWER:
            return to_bits(value, NARROWER[value.dtype.name]).astype(value.dtype)
        return tuple(map(narrowed, value)) if isinstance(value, tuple) else value

    call = target.recording.call
    return target.recomputed(replace(call, arguments=tuple(map(narrowed, call.arguments))))


_ACCUMULATED_AT_ONCE = 16


def bfloat16_accumulator(target: Target) -> Array | None:
    """Partial sums over 16 terms each, added up in bfloat16."""
    terms = _TERMS.get(target.recording.call.api.short)
    arguments = target.recording.call.arguments
    if terms is None or target.direction != "forward" or not is_float(target.right):
        return None
    if target.recording.call.keywords or not all(isinstance(a, np.ndarray) and a.ndim for a in arguments):
        return None
    partial = attempt(lambda: terms(*(np.asarray(a).astype(np.float64) for a in arguments)))
    if partial is None or len(partial) < 2:
        return None
    total = np.zeros(partial[0].shape, ml_dtypes.bfloat16)
    for part in partial:
        total = round_once(total.astype(np.float64) + part, total.dtype)
    wide = total.astype(np.float64)
    if target.recording.call.api.short == "mean":
        wide = wide / arguments[0].size  # type: ignore[union-attr]
    return round_once(wide, target.right.dtype) if wide.shape == target.right.shape else None


def _product_terms(left: Array, right: Array, bias: Array | None = None) -> list[Array]:
    width = left.shape[-1]
    if min(left.ndim, right.ndim) < 2:
        raise ValueError("a vector")
    steps = range(0, width, _ACCUMULATED_AT_ONCE)
    sums = [left[..., i : i + _ACCUMULATED_AT_ONCE] @ right[..., i : i + _ACCUMULATED_AT_ONCE, :] for i in steps]
    return sums if bias is None else [*sums, np.broadcast_to(bias, sums[0].shape)]


def _linear_terms(left: Array, weight: Array, bias: Array | None = None) -> list[Array]:
    return _product_terms(left, weight.swapaxes(-1, -2), bias)


def _sum_terms(values: Array) -> list[Array]:
    flat = values.reshape(-1)
    count = max(_ACCUMULATED_AT_ONCE, flat.size // 1024)
    return [np.asarray(flat[i : i + count].sum()) for i in range(0, flat.size, count)]


_TERMS: dict[str, Callable[..., list[Array]]] = {
    "matmul": _product_terms,
    "mm": _product_terms,
    "bmm": _product_terms,
    "linear": _linear_terms,
    "sum": _sum_terms,
    "mean": _sum_terms,
}

#: Where an axis stands among the arguments when it is not a keyword.
_AXIS_POSITION = dict.fromkeys(
    "softmax log_softmax cumsum cumprod sum mean amax amin argmax argmin std var logsumexp cummax cummin sort flip "
    "gather index_select roll cat stack".split(),
    1,
)


def wrong_axis(target: Target) -> Array | None:
    """The same call along another axis, where that gives a result of the same shape."""
    call = target.recording.call
    position = _AXIS_POSITION.get(call.api.short)
    axes = {key: call.keywords[key] for key in ("dim", "axis") if type(call.keywords.get(key)) is int}
    if position is not None and position < len(call.arguments) and type(call.arguments[position]) is int:
        arguments = list(call.arguments)
        arguments[position] = _other_axis(arguments[position])
        return target.recomputed(replace(call, arguments=tuple(arguments)))
    for key, axis in axes.items():
        return target.recomputed(replace(call, keywords={**call.keywords, key: _other_axis(axis)}))
    return None


def _other_axis(axis: Any) -> int:
    return axis - 1 if axis < 0 else axis - 1 if axis > 0 else 1


def wrong_broadcast_axis(target: Target) -> Array | None:
    """An argument that is broadcast, laid along the last axis but one."""
    call = target.recording.call
    if target.direction != "forward" or target.right.ndim < 2:
        return None
    for index, value in enumerate(call.arguments):
        if isinstance(value, np.ndarray) and 1 < value.size < target.right.size and value.ndim <= target.right.ndim:
            turned = value[:, None] if value.ndim == 1 else value.swapaxes(-1, -2)
            arguments = (*call.arguments[:index], turned, *call.arguments[index + 1 :])
            found = target.recomputed(replace(call, arguments=arguments))
            if found is not None:
                return found
    return None


_INDEXED = frozenset("gather index_select embedding take cross_entropy nll_loss index_add scatter".split())


def index_off_by_one(target: Target) -> Array | None:
    """Every index argument one too large, the largest becoming 0."""
    call = target.recording.call
    is_index = [isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.size for value in call.arguments]
    if call.api.short not in _INDEXED or not any(is_index):
        return None
    arguments = tuple(
        (value + 1) % (value.max() + 1) if is_one else value  # type: ignore[operator,union-attr]
        for value, is_one in zip(call.arguments, is_index)
    )
    return target.recomputed(replace(call, arguments=arguments))


#: Names of the epsilon of a normalisation, and where it stands when it is positional.
_EPSILON = {
    "layer_norm": ("eps", 4),
    "group_norm": ("eps", 4),
    "batch_norm": ("eps", 7),
    "normalize": ("eps", 3),
    "rms_norm": ("epsilon", 2),
}


def epsilon_left_out(target: Target) -> Array | None:
    call = target.recording.call
    if call.api.short not in _EPSILON:
        return None
    name, position = _EPSILON[call.api.short]
    if len(call.arguments) > position:
        arguments = (*call.arguments[:position], 0.0, *call.arguments[position + 1 :])
        return target.recomputed(replace(call, arguments=arguments))
    return target.recomputed(replace(call, keywords={**call.keywords, name: 0.0}))


def other_approximation(target: Target) -> Array | None:
    """The tanh formula of gelu where the exact one was asked for, and the reverse."""
    call = target.recording.call
    if call.api.short != "gelu" or len(call.arguments) > 1:
        return None
    other = "none" if call.keywords.get("approximate", "none") == "tanh" else "tanh"
    return target.recomputed(replace(call, keywords={**call.keywords, "approximate": other}))


def gradient_of_other_argument(target: Target) -> Array | None:
    if target.direction == "forward":
        return None
    call, wanted = target.recording.call, target.recording.wanted
    looks = [(leaf_of(call, path).shape, leaf_of(call, path).dtype) for path in wanted]
    for other, look in enumerate(looks):
        if other != target.place and look == looks[target.place]:
            return target.recording.ideal.gradients[other]
    return None
