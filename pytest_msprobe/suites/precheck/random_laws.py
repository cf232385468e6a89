"""The laws that apis/facts/random.txt names, made from the arguments of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from msprobe_collector.dump_format import Dtype
from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.kinds import kind_of
from pytest_msprobe.numerics.random import laws
from pytest_msprobe.numerics.random.categories import (
    judge_categories,
    judge_gumbel_softmax,
    judge_permutation,
    judge_shuffled,
)
from pytest_msprobe.numerics.random.chance import SampleResult
from pytest_msprobe.numerics.random.distribution import judge_bernoulli, judge_sample, located
from pytest_msprobe.numerics.random.dropout import Dropout, DropoutResult, judge_dropout
from pytest_msprobe.numerics.ulp import float_format

#: The distribution function of a Poisson law is a sum that grows with its mean.
_LARGEST_POISSON_MEAN = 1000


@dataclass(frozen=True, slots=True)
class OutputLaw:
    """What the first output of one call must follow.

    Attributes:
        text: for people: `normal(0, 1)`.
        judge: the verdict on that output; ValueError when the arguments are not parameters of the law.
        dropout: what that output shows as a dropout, when it is one: its gradient and its mask follow from that.
        has_zero_gradient: whether every gradient is 0 by definition, because what is drawn is a step.
    """

    text: str
    judge: Callable[[Array], SampleResult]
    dropout: Callable[[Array], DropoutResult] | None = None
    has_zero_gradient: bool = False


def _of(law: laws.Law) -> OutputLaw:
    return OutputLaw(law.text, lambda output: judge_sample(output, law))


def _integers(bounds: tuple[Any, ...], low: Any, high: Any) -> OutputLaw:
    """Law of integers from `low` to `high - 1`.

    `bounds` are (high,) or (low, high), perhaps with a size behind them.
    """
    given = [_scalar(bound) for bound in bounds if not isinstance(bound, tuple)]
    if len(given) == 1 and high is None:
        given = [_scalar(low), *given]
    elif len(given) == 1:
        given = [*given, _scalar(high)]
    elif not given:
        given = [_scalar(low), _scalar(high)]
    first, end = (int(bound) for bound in given[:2])
    if first >= end:
        raise ValueError(f"there is no integer from {first} to below {end}")
    return _of(laws.integers(first, end))


def _integers_below(low: Any, high: Any, source: Any) -> OutputLaw:
    """MindSpore's random_, whose upper end is by default that of the dtype."""
    if high is None:
        if kind_of(source.dtype) != "int":
            raise ValueError("its upper end is not documented for floats")
        high = int(np.iinfo(source.dtype).max) + 1
    return _integers((), low, high)


def _integers_in(bounds: tuple[Any, ...], source: Any) -> OutputLaw:
    """PyTorch's random_, which fills floats with the integers that their mantissa holds."""
    if bounds:
        return _integers(bounds, 0, None)
    if kind_of(source.dtype) == "float":
        return _integers((), 0, 2 ** (float_format(source.dtype).mantissa_bits + 1) + 1)
    return _integers((), 0, 2 if source.dtype.kind == "b" else int(np.iinfo(source.dtype).max) + 1)


def _uniform_of_dtype(low: Any, high: Any, dtype: Any) -> OutputLaw:
    """mindspore.ops.uniform, which draws integers when it is asked for an integer dtype."""
    if isinstance(dtype, Dtype) and dtype.kind == "int":
        return _integers((), low, high)
    return _of(laws.uniform(low, high))


def _poisson(mean: Any) -> OutputLaw:
    means = np.unique(np.asarray(mean, np.float64))
    if means.size != 1 or not 0 <= means[0] <= _LARGEST_POISSON_MEAN:
        raise ValueError(f"only one mean of up to {_LARGEST_POISSON_MEAN} for all elements can be tested")
    return _of(laws.poisson(float(means[0])))


def _bernoulli(probability: Any) -> OutputLaw:
    array = np.asarray(probability)
    text = f"{float(array.reshape(-1)[0]):g}" if array.size == 1 else "one per element"
    return OutputLaw(f"Bernoulli({text})", lambda output: judge_bernoulli(output, probability), has_zero_gradient=True)


def _bernoulli_or_given(source: Any, probability: Any) -> OutputLaw:
    """torch.bernoulli: of the input's own values unless p is given."""
    return _bernoulli(source if probability is None else probability)


def _categories(weights: Array, with_replacement: Any) -> OutputLaw:
    return OutputLaw(
        f"categories {'with' if with_replacement else 'without'} replacement",
        lambda output: judge_categories(output, weights, with_replacement=bool(with_replacement)),
    )


def _categories_of_logits(logits: Array) -> OutputLaw:
    wide = logits.astype(np.float64)
    return _categories(np.exp(wide - wide.max(axis=-1, keepdims=True)), True)


def _gumbel_softmax(logits: Array, is_hard: Any, axis: Any) -> OutputLaw:
    return OutputLaw(
        "Gumbel softmax of the logits",
        lambda output: judge_gumbel_softmax(output, logits, axis=int(axis), is_hard=bool(is_hard)),
    )


def _permutation(count: Any) -> OutputLaw:
    wanted = int(_scalar(count))
    return OutputLaw(f"permutation of {wanted}", lambda output: judge_permutation(output, wanted))


def _shuffled(source: Array) -> OutputLaw:
    return OutputLaw("rows in random order", lambda output: judge_shuffled(output, source))


def _dropout(source: Array, probability: Any, is_training: Any, axes: int) -> OutputLaw:
    """Dropout of elements, or of channels with `axes` trailing axes; `probability` None: the scale tells it."""
    if kind_of(source.dtype) != "float":
        raise ValueError(f"only floats can be distinguished from their scaled values, not {source.dtype}")
    # dropout2d of three axes drops as dropout1d does (torch.nn.functional.dropout2d, Warning).
    axes = min(axes, source.ndim - 2) if axes == 2 else axes
    if not 0 <= axes < max(source.ndim, 1):
        raise ValueError(f"an input of shape {source.shape} has no channels")
    if probability is None:
        text = "dropout with the probability that its scale shows"
        return _as_dropout(text, lambda output: _hidden_dropout(output, source, axes))
    dropped = float(_scalar(probability)) if is_training else 0.0
    law = Dropout.of(dropped, unit_axes=axes)
    unit = " of channels" if axes else ""
    return _as_dropout(f"dropout({dropped:g}){unit}", lambda output: judge_dropout(output, source, law))


def _hidden_dropout(output: Array, source: Array, axes: int) -> DropoutResult:
    seen = Dropout.seen_in(output, source, unit_axes=axes) if output.shape == source.shape else None
    if seen is not None:
        return judge_dropout(output, source, seen)
    found = judge_dropout(output, source, Dropout((0.0, 1.0), 0.0, unit_axes=axes))
    note = "no element was kept that would show keep_prob, which the dump does not hold: judged by range and form only"
    return DropoutResult(found.verdict + SampleResult(notes=(note,)), found.is_kept, found.scale)


def _alpha_dropout(source: Array, probability: Any, is_training: Any) -> OutputLaw:
    dropped = float(_scalar(probability)) if is_training else 0.0
    law = Dropout.alpha(dropped)
    # Its gradient is scaled as its output is, but an output does not show it: both branches are values of one range.
    return OutputLaw(f"alpha dropout({dropped:g})", lambda output: judge_dropout(output, source, law).verdict)


def _as_dropout(text: str, find: Callable[[Array], DropoutResult]) -> OutputLaw:
    return OutputLaw(text, lambda output: find(output).verdict, find)


def _rrelu(source: Array, lower: Any, upper: Any, is_training: Any) -> OutputLaw:
    """Slopes of negative inputs; in evaluation all are the mean of both ends (torch.nn.functional.rrelu)."""
    if not is_training:
        lower = upper = (lower + upper) / 2
    slopes = laws.uniform(float(lower), float(upper))

    def judge(output: Array) -> SampleResult:
        if output.shape != source.shape:
            return SampleResult((f"Shapes differ: tested {output.shape}, input {source.shape}.",))
        wide, wide_source = output.astype(np.float64), source.astype(np.float64)
        is_changed = (wide != wide_source) & (wide_source >= 0)
        if is_changed.any():
            return SampleResult((located(is_changed.reshape(-1), output, "not the input, which is not negative"),))
        smallest = 2.0**8 * float_format(output.dtype).smallest_normal
        is_sloped = (wide_source < -smallest) & np.isfinite(wide_source)
        return judge_sample(wide[is_sloped] / wide_source[is_sloped], slopes, rounded_to=output.dtype)

    return OutputLaw(f"rrelu with slopes {slopes.text}", judge)


def _uninitialised() -> OutputLaw:
    note = "uninitialised: judged by dtype and shape only"
    return OutputLaw("dtype and shape only", lambda output: SampleResult(notes=(note,)))


def _scalar(value: Any) -> Any:
    """A Python number out of one or out of an array of one element."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"{value!r} is not one number")
    return array.reshape(-1)[0].item()


#: Maker of each law by its name in the table.
LAWS: Mapping[str, Callable[..., OutputLaw]] = MappingProxyType(
    {
        "uninitialised": _uninitialised,
        "uniform": lambda low, high: _of(laws.uniform(low, high)),
        "uniform_of_dtype": _uniform_of_dtype,
        "normal": lambda mean, deviation: _of(laws.normal(mean, deviation)),
        "truncated_normal": lambda: _of(laws.truncated_normal()),
        "log_normal": lambda mean, deviation: _of(laws.log_normal(mean, deviation)),
        "exponential": lambda rate: _of(laws.exponential(_scalar(rate))),
        "laplace": lambda mean, scale: _of(laws.laplace(mean, scale)),
        "cauchy": lambda median, width: _of(laws.cauchy(median, width)),
        "geometric": lambda probability: _of(laws.geometric(float(_scalar(probability)))),
        "poisson": _poisson,
        "integers": _integers,
        "integers_below": _integers_below,
        "integers_in": _integers_in,
        "bernoulli": _bernoulli,
        "bernoulli_or_given": _bernoulli_or_given,
        "categories": _categories,
        "categories_of_logits": _categories_of_logits,
        "gumbel_softmax": _gumbel_softmax,
        "permutation": _permutation,
        "shuffled": _shuffled,
        "dropout": _dropout,
        "alpha_dropout": _alpha_dropout,
        "rrelu": _rrelu,
    }
)
