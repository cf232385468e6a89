"""The laws that apis/facts/random.txt names, made from the arguments of one call.

- Random and uninitialised outputs: judged by the law that their call names instead of by a benchmark.
- The dtype and shape that a call's arguments ask for: what can be held against uninitialised and random outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from msprobe_collector.dump_format import Dtype, TensorValue, dtype_of_array, find_dtype
from pytest_msprobe.cases.call_run import arrays_of, present_outputs
from pytest_msprobe.cases.case import Case
from pytest_msprobe.engines.protocol import Array, NotJudged, Output, dtype_names, output_label
from pytest_msprobe.numerics import chance as laws
from pytest_msprobe.numerics.chance import SampleResult, judge_bernoulli, judge_sample, wrong_elements
from pytest_msprobe.numerics.draws import (
    Dropout,
    DropoutResult,
    judge_categories,
    judge_dropout,
    judge_dropout_gradient,
    judge_dropout_mask,
    judge_gumbel_softmax,
    judge_permutation,
    judge_shuffled,
)
from pytest_msprobe.numerics.dtypes import float_format, kind_of
from pytest_msprobe.numerics.expected import Times
from pytest_msprobe.numerics.judgement import count_of
from pytest_msprobe.numerics.measurement import widened
from pytest_msprobe.verdicts import OutputRow, Verdict

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


def _of(law: laws.ElementLaw) -> OutputLaw:
    return OutputLaw(law.text, lambda output: judge_sample(output, law))


def _integers(bounds: tuple[Any, ...], low: Any, high: Any) -> OutputLaw:
    """Law of integers from `low` to `high - 1`.

    `bounds` are (high,) or (low, high), perhaps with a size behind them.
    """
    ends = [_scalar(bound) for bound in bounds if not isinstance(bound, tuple)]
    if len(ends) < 2 and (high is None or not ends):
        ends.insert(0, _scalar(low))
    if len(ends) < 2:
        ends.append(_scalar(high))
    first, end = map(int, ends[:2])
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


def _categories(weights: Array, with_replacement: Any) -> OutputLaw:
    text = f"categories {'with' if with_replacement else 'without'} replacement"
    return OutputLaw(text, lambda output: judge_categories(output, weights, with_replacement=bool(with_replacement)))


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


def _dropout(source: Array, probability: Any, is_training: Any, axes: int) -> OutputLaw:
    """Dropout of elements, or of channels with `axes` trailing axes, of `axes` leading ones with the sign turned.

    `probability` None: the scale tells it.
    """
    if kind_of(source.dtype) != "float":
        raise ValueError(f"only floats can be distinguished from their scaled values, not {source.dtype}")
    # dropout2d of three axes drops as dropout1d does (torch.nn.functional.dropout2d, Warning).
    if axes == 2:
        axes = min(axes, source.ndim - 2)
    elif axes < 0:
        axes += source.ndim
    if not 0 <= axes < max(source.ndim, 1):
        raise ValueError(f"an input of shape {source.shape} has no channels")
    if probability is None:
        text = "dropout with the probability that its scale shows"
        return _as_dropout(text, lambda output: _hidden_dropout(output, source, axes))
    dropped = _dropped(probability, is_training)
    law = Dropout.of(dropped, unit_axes=axes)
    unit = " of channels" if axes else ""
    return _as_dropout(f"dropout({dropped:g}){unit}", lambda output: judge_dropout(output, source, law))


def _dropped(probability: Any, is_training: Any) -> float:
    return float(_scalar(probability)) if is_training else 0.0


def _hidden_dropout(output: Array, source: Array, axes: int) -> DropoutResult:
    shown = Dropout.seen_in(output, source, unit_axes=axes) if output.shape == source.shape else None
    if shown is not None:
        return judge_dropout(output, source, shown)
    result = judge_dropout(output, source, Dropout((0.0, 1.0), 0.0, unit_axes=axes))
    note = "no element was kept that would show keep_prob, which the dump does not hold: judged by range and form only"
    return DropoutResult(result.verdict + SampleResult(notes=(note,)), result.is_kept, result.scales)


def _alpha_dropout(source: Array, probability: Any, is_training: Any) -> OutputLaw:
    dropped = _dropped(probability, is_training)
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
        wide, wide_source = widened(output), widened(source)
        is_changed = (wide != wide_source) & (wide_source >= 0)
        if is_changed.any():
            return wrong_elements(is_changed, output, "not the input, which is not negative")
        smallest = Times.SLOPED * float_format(output.dtype).smallest_normal
        is_sloped = (wide_source < -smallest) & np.isfinite(wide_source)
        return judge_sample(wide[is_sloped] / wide_source[is_sloped], slopes, rounded_to=output.dtype)

    return OutputLaw(f"rrelu with slopes {slopes.text}", judge)


def _scalar(value: Any) -> Any:
    """A Python number out of one or out of an array of one element."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"{value!r} is not one number")
    return array.reshape(-1)[0].item()


_UNINITIALISED = SampleResult(notes=("uninitialised: judged by dtype and shape only",))
#: Maker of each law by its name in the table.
LAWS: Mapping[str, Callable[..., OutputLaw]] = MappingProxyType(
    {
        "uninitialised": lambda: OutputLaw("dtype and shape only", lambda output: _UNINITIALISED),
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
        # torch.bernoulli: of the input's own values unless p is given.
        "bernoulli_or_given": lambda source, probability: _bernoulli(source if probability is None else probability),
        "categories": _categories,
        "categories_of_logits": _categories_of_logits,
        "gumbel_softmax": _gumbel_softmax,
        "permutation": _permutation,
        "shuffled": lambda source: OutputLaw("rows in random order", lambda output: judge_shuffled(output, source)),
        "dropout": _dropout,
        "alpha_dropout": _alpha_dropout,
        "rrelu": _rrelu,
    }
)


@dataclass(frozen=True, slots=True)
class ExpectedForm:
    """Dtype and shape; None where it is not known."""

    dtype: Dtype | None = None
    shape: tuple[int, ...] | None = None

    def fault(self, output: Array, source: str) -> str | None:
        """What is wrong with the form of `output`, given that `source` asked for this one; None when nothing is."""
        dtype = dtype_of_array(output.dtype)
        if self.dtype is not None and dtype is not self.dtype:
            return f"Tested dtype {dtype.name if dtype else output.dtype}, but {source} {self.dtype.name}."
        if self.shape is not None and tuple(output.shape) != self.shape:
            return f"Tested shape {tuple(output.shape)}, but {source} {self.shape}."
        return None


def _like(source: Any, dtype: Any) -> ExpectedForm:
    if not hasattr(source, "__array_interface__"):
        return ExpectedForm(_dtype(dtype))
    return ExpectedForm(_dtype(dtype) or dtype_of_array(source.dtype), tuple(source.shape))


def _size(size: Any, dtype: Any, default: str) -> ExpectedForm:
    return ExpectedForm(_dtype(dtype) or find_dtype(default), _shape(size))


def _size_in(size: Any, bounds: tuple[Any, ...], dtype: Any, default: str) -> ExpectedForm:
    """randint, whose size stands last among its positional arguments."""
    if size is None and bounds:
        size = bounds[-1]
    return _size(size, dtype, default)


def _dtype(dtype: Any) -> Dtype | None:
    if isinstance(dtype, str):
        return find_dtype(dtype)
    return dtype if isinstance(dtype, Dtype) else None


def _shape(size: Any) -> tuple[int, ...] | None:
    """`3`, `(3, 4)`, `((3, 4),)` or a tensor of sizes, as a shape."""
    if hasattr(size, "__array_interface__"):
        size = size.tolist()
    if isinstance(size, int) and not isinstance(size, bool):
        return (size,)
    if not isinstance(size, (tuple, list)):
        return None
    if len(size) == 1 and not isinstance(size[0], int):
        return _shape(size[0])
    is_shape = all(isinstance(length, int) for length in size)
    return tuple(size) if is_shape else None


#: Reader of each form by its name in the table.
FORMS: Mapping[str, Callable[..., ExpectedForm]] = MappingProxyType(
    {
        "like": _like,
        "size": _size,
        "size_of": lambda size, source, dtype: ExpectedForm(_like(source, dtype).dtype, _shape(size)),
        "size_in": _size_in,
    }
)


_SWITCHED_OFF = (
    "the recorded dropout returned its input, as it does while a collector has dropout switched off: "
    "its law cannot be tested"
)
_NO_GRADIENT_LAW = "random by nature: the gradient depends on what the forward drew"


@dataclass(frozen=True, slots=True)
class RandomCall:
    """A call whose outputs follow a law instead of equalling a benchmark's.

    Attributes:
        case: the call.
        law: of its first output.
        form: the dtype and shape that its arguments ask for.
        is_recorded: whether recorded values are tested, whose recorded dtype and shape then prove nothing.
    """

    case: Case
    law: OutputLaw
    form: ExpectedForm
    is_recorded: bool

    def judge_outputs(self, tested: Sequence[Output], device: str) -> Verdict:
        """The verdict on the forward outputs.

        Raises:
            NotJudged: there is no law to test them by, after all.
        """
        present = present_outputs(tested)
        arrays = arrays_of(present)
        if not arrays or len(arrays) < len(present):
            raise NotJudged("skip", "random by nature, and its outputs are not all tensors")
        try:
            verdicts = self._verdicts(arrays)
        except ValueError as error:
            raise _untestable(error) from None
        labels = [output_label(output.path) for output in present]
        return self._finding(labels, arrays, verdicts, device)

    def judge_gradients(
        self,
        outputs: Sequence[Output] | None,
        gradients: Sequence[Array | None],
        incoming: Sequence[Array | None],
        device: str,
    ) -> Verdict:
        """The verdict on the gradient of a dropout's input, by what the tested `outputs` show to be dropped.

        Gradients of a law that is a step, such as Bernoulli's, must be 0.

        Raises:
            NotJudged: the law says nothing of gradients, or what was dropped is not known.
        """
        present = {path: gradient for path, gradient in zip(self.case.wanted, gradients) if gradient is not None}
        labels = [f"output.{self.case.pairing.entries.get(path, 0)}" for path in present]
        arrays = list(present.values())
        if self.law.has_zero_gradient:
            return self._finding(labels, arrays, list(map(_zero_verdict, arrays)), device)
        if self.law.dropout is None:
            raise NotJudged("skip", _NO_GRADIENT_LAW)
        forward = arrays_of(outputs or ())
        if not forward or incoming[0] is None or len(present) != 1:
            raise NotJudged("skip", f"{_NO_GRADIENT_LAW}, and the tested forward output is not known")
        try:
            verdict = judge_dropout_gradient(arrays[0], incoming[0], self.law.dropout(forward[0]))
        except ValueError as error:
            raise _untestable(error) from None
        return self._finding(labels, arrays, [verdict], device)

    def _verdicts(self, arrays: Sequence[Array]) -> list[SampleResult]:
        faults = self._form_faults(arrays)
        if faults:
            return faults
        if self.law.dropout is None:
            return [self.law.judge(arrays[0]), *[SampleResult()] * (len(arrays) - 1)]
        shown = self.law.dropout(arrays[0])
        if shown.is_identity and self.is_recorded:
            raise NotJudged("skip", _SWITCHED_OFF)
        return [shown.verdict, *(judge_dropout_mask(mask, shown) for mask in arrays[1:])]

    def _form_faults(self, arrays: Sequence[Array]) -> list[SampleResult]:
        """Verdicts on dtypes and shapes, or nothing when all are as they should be."""
        faults = [self.form.fault(arrays[0], "the arguments ask for"), *[None] * (len(arrays) - 1)]
        recorded = self.case.output_values()
        if not self.is_recorded and len(recorded) == len(arrays):
            for place, (value, array) in enumerate(zip(recorded, arrays)):
                form = ExpectedForm(value.dtype, value.shape) if isinstance(value, TensorValue) else ExpectedForm()
                faults[place] = faults[place] or form.fault(array, "the dump recorded")
        if not any(faults):
            return []
        return [SampleResult(tuple(filter(None, [fault]))) for fault in faults]

    def _finding(
        self, labels: Sequence[str], arrays: Sequence[Array], verdicts: Sequence[SampleResult], device: str
    ) -> Verdict:
        rows = tuple(map(_row, labels, arrays, verdicts))
        notes, texts = dict.fromkeys(self.case.notes), []
        for row, verdict in zip(rows, verdicts):
            notes.update(dict.fromkeys(verdict.notes))
            if verdict.reasons:
                reasons = "\n  ".join(verdict.reasons)
                texts.append(f"{row.label} {row.tested_dtype} {row.shape}: {reasons}")
        bench = f"law: {self.law.text}"
        if not texts:
            return Verdict("pass", "; ".join(notes), rows, device=device, bench=bench)
        return Verdict("error", "", rows, "\n\n".join(texts), device=device, bench=bench)


def random_call(case: Case, *, is_recorded: bool) -> RandomCall:
    """`case`, a random one, with the law that its outputs follow.

    Raises:
        NotJudged: its arguments do not tell the law.
    """
    entry = case.random
    assert entry is not None  # the caller asks only then
    assert entry.law is not None  # without one a call is not run
    try:
        bound = entry.bind(case.call.arguments, case.call.keywords)
        law = LAWS[entry.law.name](*entry.law.values(bound))
        form = FORMS[entry.form.name](*entry.form.values(bound)) if entry.form else ExpectedForm()
    except (TypeError, ValueError, AttributeError) as error:
        raise _untestable(error) from None
    return RandomCall(case, law, form, is_recorded)


def _zero_verdict(gradient: Array) -> SampleResult:
    count = int(np.count_nonzero(gradient))
    if not count:
        return SampleResult()
    verb = "is" if count == 1 else "are"
    return SampleResult((f"{count_of(count, gradient.size)} {verb} not 0, the gradient of a draw.",))


def _untestable(error: Exception) -> NotJudged:
    return NotJudged("skip", f"random by nature, and its arguments do not tell a law that can be tested: {error}")


def _row(label: str, array: Array, verdict: SampleResult) -> OutputRow:
    (name,) = dtype_names(array)
    return OutputRow(
        label=label,
        bench_dtype=name,
        tested_dtype=name,
        shape=tuple(array.shape),
        status="error" if verdict.reasons else "pass",
        message=" ".join(verdict.reasons) or "; ".join(verdict.notes),
    )
