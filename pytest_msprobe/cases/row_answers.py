"""How far softmax and norms move when every input is off by one rounding error: known row by row, without a run.

Each row of the last axes is made of the same row of its input. With independent relative errors d of its elements, the
first-order change of an element is a sum of terms in d, and the sum of their squares is a few sums over the row.
Whether a call is such a function is told by its values: some rows are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.numerics.measurement import Floats

#: So many rows are computed again, ...
_CHECKED = 4


@dataclass(frozen=True, slots=True)
class RowCall:
    """A call of a function of rows.

    Attributes:
        x: its input, (rows, length).
        incoming: gradient of its output, of the same shape; None for a forward.
        scale, shift: (length,), what each row is multiplied by and what is added; None without one.
        epsilon: what is added to a mean of squares.
        roundoffs: those of `x`, `incoming`, `scale` and `shift`; 0 for what there is not.
    """

    x: Array
    incoming: Array | None
    scale: Array | None
    shift: Array | None
    epsilon: float
    roundoffs: tuple[float, ...]

    def scaled(self, rows: Floats) -> Floats:
        """The rows times the scale, where there is one."""
        return rows if self.scale is None else rows * self.scale.astype(rows.dtype)


#: The result of some rows, the variance of each of its elements, and what the element of the input at its place, or of
#: the incoming gradient, adds to that.
_Formula = Callable[[RowCall, Floats, Any], "tuple[Floats, Floats, Floats | float]"]


def row_deviations(name: str, call: RowCall, reference: Array) -> Floats | None:
    """Standard deviation of each element of `reference`, shape (n,), float32; None where `name` is no such function.

    What an element owes to one element of the input counts half: it is the largest of many moves as well.

    Args:
        name: of the function: `softmax`, `log_softmax`, `layer_norm` or `rms_norm`.
        call: what it gets.
        reference: raw result of the benchmark: the output, or the gradient of `x`.
    """
    rows, length = call.x.shape
    if name not in _FORMULAS or reference.size != call.x.size or not reference.size:
        return None
    formula = _FORMULAS[name][call.incoming is not None]
    expected = reference.reshape(rows, length)
    with np.errstate(all="ignore"):
        if not _holds(formula, call, expected):
            return None
        step = max(1, (1 << 20) // length)
        deviations: Floats = np.empty(call.x.shape, np.float32)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            _, variance, single = formula(call, *_wide(call, part, np.float32))
            # One term is never further off than itself; many are, by two standard deviations, in the worst of 16.
            deviations[part] = 0.5 * np.sqrt(single) + np.sqrt(np.maximum(0, variance - single))
    return deviations.reshape(-1)


def _holds(formula: _Formula, call: RowCall, expected: Array) -> bool:
    places = np.random.default_rng(0).integers(0, len(expected), _CHECKED)
    result = formula(call, *_wide(call, places, np.float64))[0]
    largest = np.abs(expected[places]).max(axis=1, keepdims=True)
    return bool(np.all(np.abs(result - expected[places]) <= Relative.FLOAT64_ROWS * largest))


def _wide(call: RowCall, rows: slice | Array, dtype: type) -> tuple[Floats, Floats | None]:
    incoming: Floats | None = None if call.incoming is None else call.incoming[rows].astype(dtype)
    return call.x[rows].astype(dtype), incoming


def _sum(values: Floats) -> Floats:
    total: Floats = values.sum(axis=1, keepdims=True)
    return total


def _shares(x: Floats) -> tuple[Floats, Floats]:
    """(softmax of each row, logarithm of its total)."""
    largest = x.max(axis=1, keepdims=True)
    powers = np.exp(x - largest)
    total = _sum(powers)
    return powers / total, largest + np.log(total)


def _softmax(call: RowCall, x: Floats, _: None) -> tuple[Floats, Floats, Floats | float]:
    """dy_i = y_i (x_i d_i - sum y_k x_k d_k)."""
    y, _total = _shares(x)
    unit = np.square(call.roundoffs[0] * y)
    return y, unit * _of_log_shares(x, y), unit * np.square(x * (1 - y))


def _log_softmax(call: RowCall, x: Floats, _: None) -> tuple[Floats, Floats, Floats | float]:
    y, total = _shares(x)
    unit = call.roundoffs[0] ** 2
    return x - total, unit * _of_log_shares(x, y), unit * np.square(x * (1 - y))


def _of_log_shares(x: Floats, y: Floats) -> Floats:
    """Sum of squares of the terms of x_i d_i - sum y_k x_k d_k."""
    squares = np.square(x)
    sums: Floats = squares * (1 - 2 * y) + _sum(np.square(y) * squares)
    return sums


def _softmax_gradient(call: RowCall, x: Floats, g: Floats) -> tuple[Floats, Floats, Floats | float]:
    """y_i (g_i - s), s = sum g_k y_k, for errors of g, of the y that is kept, and of x, which moves y."""
    y, _total = _shares(x)
    kept = y * g
    above = g - _sum(kept)
    by_incoming = np.square(g) * (1 - 2 * y) + _sum(np.square(kept))
    by_kept = np.square(above) - 2 * above * kept + _sum(np.square(kept))
    weights = np.square(y * x)
    by_input = np.square(above * x) * (1 - 4 * y)
    by_input += np.square(above) * _sum(weights) + 2 * above * _sum(weights * above) + _sum(weights * np.square(above))
    of_x, of_g = np.square(call.roundoffs[:2])
    return y * above, np.square(y) * (of_g * by_incoming + of_x * (by_kept + by_input)), 0.0


def _log_softmax_gradient(call: RowCall, x: Floats, g: Floats) -> tuple[Floats, Floats, Floats | float]:
    """g_i - y_i sum g_k, for errors of g, of the logarithm of y that is kept, and of x, which moves it."""
    y, total = _shares(x)
    summed = _sum(g)
    by_incoming = np.square(g) * (1 - 2 * y) + np.square(y) * _sum(np.square(g))
    by_others = np.square(y * summed) * (np.square(x - total) + _of_log_shares(x, y))
    of_x, of_g = np.square(call.roundoffs[:2])
    return g - y * summed, of_g * by_incoming + of_x * by_others, of_g * np.square(g * (1 - y))


def _centred(call: RowCall, x: Floats) -> tuple[Floats, Floats, Floats]:
    """(mean of each row, reciprocal of its deviation, the row with mean 0 and deviation 1)."""
    mean = x.mean(axis=1, keepdims=True)
    away = x - mean
    inverse = 1 / np.sqrt(np.square(away).mean(axis=1, keepdims=True) + call.epsilon)
    return mean, inverse, away * inverse


def _layer_norm(call: RowCall, x: Floats, _: None) -> tuple[Floats, Floats, Floats | float]:
    """dn_i = r (x_i d_i - sum x_k d_k (1 + n_i n_k) / length) of the normalised n, times the scale."""
    _mean, inverse, normal = _centred(call, x)
    squares, length = np.square(x), x.shape[1]
    spread = _sum(squares) + 2 * normal * _sum(squares * normal) + np.square(normal) * _sum(squares * np.square(normal))
    single = squares * (1 - 2 * (1 + np.square(normal)) / length)
    return _scaled(call, normal, np.square(call.roundoffs[0] * inverse) * (single + spread / length**2))


def _rms_norm(call: RowCall, x: Floats, _: None) -> tuple[Floats, Floats, Floats | float]:
    """dn_i = n_i (d_i - sum n_k^2 d_k / length) of the normalised n, times the scale."""
    length = x.shape[1]
    normal = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + call.epsilon)
    squares = np.square(normal)
    terms = 1 - 2 * squares / length + _sum(np.square(squares)) / length**2
    return _scaled(call, normal, call.roundoffs[0] ** 2 * squares * terms)


def _scaled(call: RowCall, normal: Floats, variance: Floats) -> tuple[Floats, Floats, Floats | float]:
    if call.scale is not None:
        scale = call.scale.astype(normal.dtype)
        variance = np.square(scale) * (variance + np.square(call.roundoffs[2] * normal))
        normal = normal * scale
    if call.shift is not None:
        shift = call.shift.astype(normal.dtype)
        normal, variance = normal + shift, variance + np.square(call.roundoffs[3] * shift)
    return normal, variance, 0.0


def _layer_norm_gradient(call: RowCall, x: Floats, g: Floats) -> tuple[Floats, Floats, Floats | float]:
    """Of r (g - mean g - n mean(g n)), for errors of g and scale, of the mean and r that are kept, and of x."""
    length = x.shape[1]
    mean, inverse, normal = _centred(call, x)
    into = call.scaled(g)
    first, second = into.mean(axis=1, keepdims=True), (into * normal).mean(axis=1, keepdims=True)
    result = inverse * (into - first - normal * second)
    of_x, of_g, of_scale, _ = np.square(call.roundoffs)
    weights = np.square(into)
    by_incoming = weights * (1 - 2 * (1 + np.square(normal)) / length)
    by_incoming += _moments(weights, normal, None, (1.0, normal, 0.0)) / length**2
    by_kept = np.square(inverse * (into - first) - 3 * inverse * normal * second)
    by_kept += np.square(np.square(inverse) * mean * (second + normal * first))
    squares = np.square(x)
    constant = np.square(inverse) * second
    slopes = constant, constant * normal - inverse * result, -inverse * normal
    single = -constant * x
    beside = x * (slopes[0] + slopes[1] * normal + slopes[2] * result) / length
    by_input = np.square(single) + 2 * single * beside + _moments(squares, normal, result, slopes) / length**2
    variance = np.square(inverse) * (of_g + of_scale) * by_incoming + of_x * (by_kept + by_input)
    return result, variance, 0.0


def _moments(weights: Floats, first: Floats, second: Floats | None, slopes: Sequence[Floats | float]) -> Floats:
    """sum_k weights_k (a_i + b_i first_k + c_i second_k)^2 for each element i, with the slopes (a, b, c)."""
    a, b, c = slopes
    moments = np.square(a) * _sum(weights) + 2 * a * b * _sum(weights * first) + np.square(b) * _sum(weights * first**2)
    if second is not None:
        moments = moments + 2 * a * c * _sum(weights * second) + 2 * b * c * _sum(weights * first * second)
        moments = moments + np.square(c) * _sum(weights * np.square(second))
    return np.asarray(moments)


def _rms_norm_gradient(call: RowCall, x: Floats, g: Floats) -> tuple[Floats, Floats, Floats | float]:
    """Of r (g - n mean(g n)), for errors of g and scale, of the r that is kept, and of x."""
    length = x.shape[1]
    inverse = 1 / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + call.epsilon)
    normal = x * inverse
    into = call.scaled(g)
    second = (into * normal).mean(axis=1, keepdims=True)
    result = inverse * (into - normal * second)
    of_x, of_g, of_scale, _ = np.square(call.roundoffs)
    weights, squares = np.square(into), np.square(normal)
    by_incoming = weights * (1 - 2 * squares / length) + squares * _sum(weights * squares) / length**2
    by_kept = np.square(inverse * into - 3 * inverse * normal * second)
    single = -inverse * second * normal
    by_r, by_product = -result - single, -normal
    beside = (by_r * squares + by_product * normal * result) / length
    by_input = np.square(single) + 2 * single * beside
    by_input += _moments(squares, normal, result, (0.0, by_r, by_product)) / length**2
    variance = np.square(inverse) * (of_g + of_scale) * by_incoming + of_x * (by_kept + by_input)
    return result, variance, 0.0


#: Of the output and of the gradient.
_FORMULAS: dict[str, tuple[_Formula, _Formula]] = {
    "softmax": (_softmax, _softmax_gradient),
    "log_softmax": (_log_softmax, _log_softmax_gradient),
    "layer_norm": (_layer_norm, _layer_norm_gradient),
    "rms_norm": (_rms_norm, _rms_norm_gradient),
}
ROW_FUNCTIONS = frozenset(_FORMULAS)
#: Those that add a number to a mean of squares.
WITH_EPSILON = frozenset({"layer_norm", "rms_norm"})


def row_call(
    tensors: Sequence[Array],
    incoming: Array | None,
    roundoff: Callable[[np.dtype[Any]], float],
    *,
    epsilon: float,
) -> RowCall | None:
    """The call with `tensors` (input, scale, shift) as one of rows; None where these do not fit each other."""
    x, scale, shift = (*tensors, None, None)[:3]
    if x is None or not x.ndim:
        return None
    length = x.shape[-1] if scale is None else scale.size
    if not length or x.size % length or (shift is not None and shift.size != length):
        return None
    if incoming is not None and incoming.size != x.size:
        return None
    roundoffs = [0.0] * 4
    for place, array in enumerate((x, incoming, scale, shift)):
        if array is not None:
            roundoffs[place] = roundoff(array.dtype)
    incoming = None if incoming is None else incoming.reshape(-1, length)
    scale = None if scale is None else scale.reshape(-1)
    shift = None if shift is None else shift.reshape(-1)
    x = x.reshape(-1, length)
    return RowCall(x, incoming, scale, shift, epsilon=epsilon, roundoffs=(*roundoffs,))
