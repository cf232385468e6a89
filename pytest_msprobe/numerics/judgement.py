"""From metrics to a verdict: what a standard is and may ask for, what none may forgive, and how messages write numbers.

Python outputs (`item`, `numel`, `tolist`, `allclose`, ...) are measured like arrays by `compare_scalars`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from pytest_msprobe.numerics.dtypes import Kind
from pytest_msprobe.numerics.expected import Absolute, Relative
from pytest_msprobe.numerics.measurement import Array, Element, Floats, Metrics, Scalar, measure

_DIGITS = 6
_ROUNDED_UP = Context(prec=3, rounding=ROUND_CEILING)
_LONGEST_VALUE = 60


def number(value: float, limit: float | None = None) -> str:
    """`value` in six digits, or in all of them where six would make it look equal to `limit`."""
    short = f"{value:.{_DIGITS}g}"
    is_blurred = limit is not None and value != limit and short == f"{limit:.{_DIGITS}g}"
    return repr(float(value)) if is_blurred else short


def limit_above(value: float) -> str:
    """The shortest limit that is not below `value`, in three digits: 0.00123456 gives 0.00124."""
    return f"{_ROUNDED_UP.create_decimal_from_float(value):g}"


def limit_below(value: float) -> str:
    """The shortest limit that is not above `value`; it keeps three digits of the distance from 1."""
    distance = _ROUNDED_UP.subtract(Decimal(1), Decimal(value))
    return f"{max(1 - distance, Decimal(-1)).normalize():f}"


def place_and_values(element: Element | None) -> str:
    """` at [1, 2] (tested 1.0, benchmark 2.0)`, values so exact that they can be typed in again; "" for None.

    No place is said for the only element of a 0-d array or a lone Python value.
    """
    if element is None:
        return ""
    place = f" at {list(element.index)}" if element.index else ""
    return f"{place} (tested {_value(element.tested)}, benchmark {_value(element.reference)})"


def share(count: int, size: int) -> str:
    """`3 of 8 elements (37.5 %)`."""
    return f"{count_of(count, size)} ({100 * count / size:.3g} %)"


def count_of(count: int, size: int) -> str:
    """`3 of 8 elements`."""
    return f"{count} of {size} element{'' if size == 1 else 's'}"


def _value(value: Scalar) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


Status = Literal["pass", "error", "skip"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one output, a skip where it cannot be judged; `reasons` are whole sentences, empty for a pass."""

    status: Status
    reasons: tuple[str, ...] = ()
    #: How many times its bound the error is: at most 1 for a pass, inf for what no bound allows (NaN, shapes, unequal
    #: integers); None for a skip. Each standard says which figure of its own it is.
    ratio: float | None = field(default=None, compare=False)

    @classmethod
    def of(cls, reasons: Iterable[str], ratio: float) -> Judgement:
        """An error for these `reasons`, a pass without any."""
        sentences = tuple(reasons)
        return cls("error" if sentences else "pass", sentences, ratio=ratio)

    @property
    def is_pass(self) -> bool:
        """True for "pass"."""
        return self.status == "pass"


class Standard(Protocol):
    """The rule that turns metrics into a verdict.

    One that looks at the elements of both sides has `judge_pair(pair) -> Judgement` besides, for outputs that are
    arrays (`OutputPair`); `judge` is then left for values without elements.
    """

    @property
    def name(self) -> str:
        """The word by which users choose it."""

    @property
    def off_bound(self) -> float:
        """The error from which on `measure` should count an element as off, above 0."""

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict; it must be an error whenever `unforgivable_reasons` finds any."""


@dataclass(frozen=True, slots=True)
class CosineMaxAbs:
    """Passes when the cosine is above one limit and the max absolute error below the other, both strictly.

    Integers and bools must be equal, whatever the limits. An empty output on both sides passes.

    Its ratio is the larger one of max_abs / limit and (1 - cosine) / (1 - limit).
    """

    cosine: float = Relative.COSINE
    max_abs: float = Absolute.MAX_ABS

    name: ClassVar[str] = "cosine-maxabs"

    def __post_init__(self) -> None:
        if not -1 <= self.cosine < 1:
            raise ValueError(f"The cosine limit of {self.name} must be at least -1 and below 1, not {self.cosine!r}.")
        if not self.max_abs > 0:
            raise ValueError(f"The max_abs limit of {self.name} must be above 0, not {self.max_abs!r}.")

    @property
    def off_bound(self) -> float:
        """The limit of the max absolute error."""
        return self.max_abs

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on one output."""
        reasons = unforgivable_reasons(metrics)
        cosine, max_abs = metrics.cosine, metrics.max_abs
        if metrics.nonfinite_mismatches or metrics.is_exact or cosine is None or max_abs is None:
            return plain_judgement(reasons)
        if not cosine > self.cosine:
            needed = limit_below(math.nextafter(cosine, -math.inf)) if cosine > -1 else ""
            reasons += (f"Cosine {_against(cosine, 'above', self.cosine, needed)}",)
        if not max_abs < self.max_abs:
            needed = limit_above(math.nextafter(max_abs, math.inf)) if max_abs < math.inf else ""
            reasons += (f"Max absolute error {_against(max_abs, 'below', self.max_abs, needed)}",)
        ratios = (1 - cosine) / (1 - self.cosine), max_abs / self.max_abs
        ratio = math.inf if any(map(math.isnan, ratios)) else max(0.0, *ratios)
        return Judgement.of(reasons, ratio)


def _against(measured: float, side: str, limit: float, needed: str) -> str:
    """`0.9 is not above 0.99; a limit of 0.899 would pass.`; `needed` is "" where no limit would."""
    remedy = f"; a limit of {needed} would pass" if needed else ""
    return f"{number(measured, limit)} is not {side} {number(limit)}{remedy}."


def remedy_above(figure: float) -> str:
    """`; a limit of 0.00124 would pass`, for a `figure` that must not be above its limit; "" where no limit would."""
    return f"; a limit of {limit_above(figure)} would pass" if figure < math.inf else ""


def unforgivable_reasons(metrics: Metrics) -> tuple[str, ...]:
    """What makes an output wrong under every standard: structure, unmatched NaN or Inf, unequal exact elements."""
    reasons = []
    if metrics.structural:
        reasons.append(metrics.structural)
    if metrics.nonfinite_mismatches:
        count = _count(metrics.nonfinite_mismatches, metrics.size, "has", "have")
        first = place_and_values(metrics.first_nonfinite)
        reasons.append(f"{count} a NaN or Inf that the other side lacks, first{first}.")
    if metrics.unequal_count:
        count = _count(metrics.unequal_count, metrics.size, "differs", "differ")
        note = f" ({metrics.unequal_note})" if metrics.unequal_note else ""
        reasons.append(f"{count}, first{place_and_values(metrics.first_unequal)}{note}.")
    return tuple(reasons)


def plain_judgement(reasons: tuple[str, ...]) -> Judgement:
    """The verdict where nothing is weighed: any reason is an error beyond every bound."""
    return Judgement("error", reasons, ratio=math.inf) if reasons else Judgement("pass", ratio=0.0)


def _count(count: int, size: int, singular: str, plural: str) -> str:
    return f"{count_of(count, size)} {singular if count == 1 else plural}"


_Path = tuple[int, ...]

_EXACT_TYPES = (bool, int, str, type(None))
_INEXACT_TYPES = (float, complex)


def compare_scalars(
    tested: object, reference: object, standard: Standard, *, dtype: np.dtype[Any] | None = None
) -> tuple[Metrics, Judgement]:
    """Metrics and verdict of two Python values: bool, int, float, complex, str, None, or nested sequences of them.

    Exact values (bool, int, str, None) must be equal. Floats go to the standard, as one vector when there are several;
    NaN equals NaN. Types must agree (1 is neither 1.0 nor True), except that a list may replace a tuple and a NumPy
    scalar for the Python value that it holds. Differing types or lengths, and values of any other type, are errors.

    `dtype` is that of the tensor that the tested floats were read from, if known: the benchmark's floats are then
    rounded once to it.
    """
    elements: list[Element] = []
    problems = list(_pair_up(tested, reference, (), elements))
    if problems:
        metrics = Metrics("other", len(elements), off_bound=standard.off_bound, structural=" ".join(problems))
    else:
        metrics = _measure_elements(elements, standard.off_bound, dtype)
    return metrics, standard.judge(metrics)


def _pair_up(tested: object, reference: object, path: _Path, elements: list[Element]) -> Iterator[str]:
    """Appends the leaves that have the same place and type on both sides; yields what does not fit."""
    tested, reference = _plain(tested), _plain(reference)
    place = f" at {list(path)}" if path else ""
    if isinstance(tested, (list, tuple)) and isinstance(reference, (list, tuple)):
        if len(tested) != len(reference):
            yield f"Lengths differ{place}: tested {len(tested)}, benchmark {len(reference)}."
            return
        for i, (tested_item, reference_item) in enumerate(zip(tested, reference, strict=True)):
            yield from _pair_up(tested_item, reference_item, (*path, i), elements)
    elif type(tested) is not type(reference):
        yield f"Types differ{place}: tested {_typed(tested)}, benchmark {_typed(reference)}."
    elif isinstance(tested, (*_EXACT_TYPES, *_INEXACT_TYPES)) and isinstance(reference, type(tested)):
        elements.append(Element(path, tested, reference))
    else:
        yield f"Values of type {type(tested).__name__}{place} cannot be compared."


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _typed(value: object) -> str:
    name = type(value).__name__
    return f"{name} {value!r}" if isinstance(value, (bool, int, float, complex)) else name


def _measure_elements(elements: list[Element], off_bound: float, dtype: np.dtype[Any] | None) -> Metrics:
    inexact, unequal = list[Element](), list[Element]()
    for element in elements:
        if isinstance(element.tested, _INEXACT_TYPES):
            inexact.append(element)
        elif element.tested != element.reference:
            unequal.append(element)
    metrics = _measure_inexact(inexact, off_bound, dtype) if inexact else Metrics(_exact_kind(elements), 0)
    return replace(
        metrics,
        size=len(elements),
        off_bound=off_bound,
        off_count=metrics.off_count + len(unequal),
        unequal_count=len(unequal),
        first_unequal=next(iter(unequal), None),
    )


def _measure_inexact(elements: list[Element], off_bound: float, dtype: np.dtype[Any] | None) -> Metrics:
    # Float64 or complex128, however the values are mixed: leaf by leaf the types agree already.
    tested = np.array([element.tested for element in elements])
    reference = np.array([element.reference for element in elements])
    metrics = measure(tested if dtype is None else tested.astype(dtype), reference, off_bound=off_bound)

    def relocated(element: Element | None) -> Element | None:
        return element and replace(element, index=elements[element.index[0]].index)

    return replace(
        metrics,
        worst=relocated(metrics.worst),
        worst_relative=relocated(metrics.worst_relative),
        first_nonfinite=relocated(metrics.first_nonfinite),
    )


def _exact_kind(elements: list[Element]) -> Kind:
    types = {type(element.tested) for element in elements}
    if types == {bool}:
        return "bool"
    return "int" if types == {int} else "other"


@dataclass(frozen=True, slots=True)
class Perturbed:
    """A result of the benchmark for inputs that are off.

    Attributes:
        result: not rounded, in the shape of the output, float64 or complex128 for floats.
        size: how far the inputs were off, in rounding errors of their dtypes.
    """

    result: Array
    size: float


#: Larger calls have no probes: they take as many runs of the benchmark.
MOST_PROBED = 1 << 20


class Deviations(Protocol):
    """How far each element of an output moves when every input is off by one rounding error.

    Each is one standard deviation, float32, in the unit of the output.
    """

    @property
    def have_terms(self) -> bool:
        """Whether the terms of single elements are known as well, without a run."""

    def values(self) -> Floats | None:
        """Those of all elements, shape (n,); None where one is out of the reach of float32."""

    def least(self) -> Floats | None:
        """No more than `values`, for a part of the work; likewise."""

    def of(self, places: Array) -> Floats:
        """Those of the elements at some flat positions, shape (m,)."""

    def sample(self) -> tuple[Array, Floats]:
        """(flat positions, deviations) of elements that stand for all."""


@dataclass(frozen=True, slots=True)
class KnownDeviations:
    """Those of all elements, shape (n,)."""

    all_values: Floats
    have_terms: bool

    def values(self) -> Floats | None:
        """See `Deviations`."""
        return self.all_values if np.isfinite(self.all_values).all() else None

    least = values

    def of(self, places: Array) -> Floats:
        """See `Deviations`."""
        return self.all_values[places]

    def sample(self) -> tuple[Array, Floats]:
        """See `Deviations`."""
        places = np.unique(np.random.default_rng(0).integers(0, self.all_values.size, 1 << 14))
        return places, self.all_values[places]


#: What a run of the benchmark moves: the inputs, what is computed inside, or that without what is saved for gradients.
Moved = Literal["inputs", "inside", "arithmetic"]


class Sensitivity(Protocol):
    """How one output answers to rounding errors. A class that derives from it says what it knows: by default nothing.

    Arrays have the shape and unit of the output, float64 (complex128 for complex outputs), unless said otherwise.
    """

    def runs(self, moved: Moved) -> tuple[Perturbed, ...]:
        """Two results for moved inputs, or for arithmetic inside that is moved by the rounding of float32.

        The second is for much smaller moves; there are fewer, or none, where the benchmark could not be run on them.
        """
        return ()

    def probes(self, moved: Moved, count: int) -> tuple[Array, ...]:
        """`count` results for inputs (or arithmetic) that are each off by exactly one rounding error, at random.

        Fewer, or none, where the benchmark could not be run on them, or is too large for so many runs.
        """
        return ()

    def terms(self, at: int) -> tuple[Floats, ...]:
        """What the element at a flat position is the sum of, shape (n,), in each order in which kernels may add.

        Nothing where the operation is no sum.
        """
        return ()

    def deviations(self) -> Deviations | None:
        """How far each element moves, where that is known without a moved run."""
        return None

    def restricted(self, tested: Array, places: Sequence[int] | Array) -> OutputPair | None:
        """The pair of a small call that makes the elements of `tested` at flat `places` and a sample of others.

        None where the call cannot be restricted to so few, or is not large.
        """
        return None

    def partial_sums(self) -> Floats | None:
        """The 2-norm of the partial sums of each element of a gradient that adds up positions; None of any other."""
        return None

    def sums_of_magnitudes(self) -> Array | None:
        """Of each element the sum of the magnitudes of its terms; None where these are not known."""
        return None

    def second_opinion(self) -> Array | None:
        """The same output from an ordinary run in the tested dtype on another engine; None without one."""
        return None


class _NothingKnown(Sensitivity):
    """Of an output of which nothing is known but its values."""


@dataclass(frozen=True, slots=True)
class _OfSelected(Sensitivity):
    """What is known of the elements of an output at flat positions; no run tells more of them."""

    whole: Sensitivity
    places: Array
    known_deviations: Floats
    have_terms: bool

    def terms(self, at: int) -> tuple[Floats, ...]:
        return self.whole.terms(int(self.places[at]))

    def deviations(self) -> Deviations | None:
        return KnownDeviations(self.known_deviations, self.have_terms)

    def partial_sums(self) -> Floats | None:
        sums = self.whole.partial_sums()
        return None if sums is None else sums.reshape(-1)[self.places]


@dataclass(frozen=True, slots=True)
class OutputPair:
    """One output of both sides, and what a standard that looks at elements may ask for.

    Attributes:
        tested: output of the device, in its own shape and dtype.
        reference: raw result of the benchmark, not rounded: of the shape of `tested`, float64 or complex128 for floats.
        metrics: of the two.
        sensitivity: how the output answers to rounding errors; what it says takes further runs of the benchmark.
        accumulated: how many terms one element may sum up.
        kernel_error: relative error that the functions which the API evaluates may have on a device, beside rounding.
        operand_roundoff: by how much float32 inputs were off in moved runs, where that is not their own rounding.
        narrow_sums: how many partial sums of an element the device may have added up in the dtype of `tested`.
        has_kinks: whether it is the gradient of an elementwise function, which has one value for each side of a kink.
        chosen, drawn_from: of the pair of a small call, how many elements come first that are no sample, and how many
            elements the whole output has; 0 and 0 of any other.
    """

    tested: Array
    reference: Array
    metrics: Metrics
    sensitivity: Sensitivity = field(default_factory=_NothingKnown)
    accumulated: int = 1
    kernel_error: float = 0.0
    operand_roundoff: float | None = None
    narrow_sums: int = 1
    has_kinks: bool = False
    chosen: int = 0
    drawn_from: int = 0

    def selected(self, places: Array, deviations: Floats, *, chosen: int, have_terms: bool) -> OutputPair:
        """The elements at these flat positions as an output of their own, whose first `chosen` are no sample of it.

        `deviations` are theirs; no run tells more of them.
        """
        return replace(
            self,
            tested=self.tested.reshape(-1)[places],
            reference=self.reference.reshape(-1)[places],
            sensitivity=_OfSelected(self.sensitivity, places, deviations, have_terms),
            has_kinks=False,
            chosen=chosen,
            drawn_from=self.tested.size,
        )

    @property
    def row_size(self) -> int:
        """How many elements stand at one place of the first axis."""
        return math.prod(self.reference.shape[1:])


def judge_output(standard: Standard, metrics: Metrics, pair: Callable[[], OutputPair]) -> Judgement:
    """The verdict of any standard; the `pair` is made only for one that looks at it."""
    judge = getattr(standard, "judge_pair", None)
    return judge(pair()) if judge is not None else standard.judge(metrics)


def judge_pair(standard: Standard, pair: OutputPair) -> Judgement:
    """The verdict of any standard on an output pair that is there already."""
    return judge_output(standard, pair.metrics, lambda: pair)
