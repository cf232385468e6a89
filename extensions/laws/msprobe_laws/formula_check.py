"""The formula of an optimizer's update, computed once in float64 for the laws that read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msprobe_laws.formulas import FORMULAS, PARAMETER, Formula, Inputs
from msprobe_laws.law import listed
from msprobe_laws.observation import Array, Update, UpdatedParameter, coarsest_roundoff, smallest
from msprobe_laws.rounding import Rounded
from pytest_msprobe.numerics.expected import Relative, Roundoffs, Times

#: The state that counts the steps of a parameter.
COUNTER = "step"
#: Settings by which own classes leave out the correction of the bias.
_CORRECTIONS = ("correct_bias", "bias_correction", "debias")


@dataclass(frozen=True, slots=True)
class Batch:
    """Parameters that one evaluation of a formula takes together: the same group, dtypes and states.

    Attributes:
        parameters: with gradients, in order.
        is_whole: whether it is one parameter with all its elements.
    """

    parameters: Sequence[UpdatedParameter]
    is_whole: bool = False

    @property
    def sizes(self) -> list[int]:
        """How many elements of each parameter are looked at."""
        return [item.before.size for item in self.parameters]

    def joined(self, arrays: Iterable[Array]) -> Array:
        """Elements of all parameters; a state of one number is repeated for each of its elements."""
        return np.concatenate(
            [
                array.reshape(-1) if array.size == size else np.full(size, array.reshape(-1)[0])
                for array, size in zip(arrays, self.sizes)
            ]
        )


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far one tensor of one parameter is from its formula, in tolerances.

    Attributes:
        parameter: its name.
        what: `parameter`, or the state.
        size: largest deviation over tolerance.
        tested, right: the worst element and what the formula gives for it.
        scale: of a parameter, by which factor its change differs from the formula's, where it is one factor; else None.
    """

    parameter: UpdatedParameter
    what: str
    size: float
    tested: float
    right: float
    scale: float | None = None


class FormulaCheck:
    """The formula of one update, computed once for the laws that read it."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.reason = ""
        self.formula = FORMULAS.get(update.formula)
        #: Deviations above tolerance, and how many tensors were compared, by what they are.
        self.deviations: list[Deviation] = []
        self.compared: dict[str, int] = {}
        self.not_compared: list[str] = []
        #: Settings of the variant of the formula that comes nearest.
        self.variant: Mapping[str, Any] = {}
        if self.formula is None:
            self.reason = update.unknown or f"no formula of {update.optimizer} is known"
            return
        for number, settings in enumerate(update.settings):
            if missing := [name for name in self.formula.needs if settings.get(name) is None]:
                self.reason = f"group {number} does not say its {listed(missing)}"
                return
        self._compute(self.formula)

    def _compute(self, formula: Formula) -> None:
        variants = formula.variants if self.update.is_own else formula.variants[:1]
        if self._counts_steps():
            variants = [one for one in variants if not one.get("no_bias_correction")] or variants
        for number, variant in enumerate(variants):
            deviations, compared = self._with(formula, variant)
            if not number or len(deviations) < len(self.deviations):
                self.deviations, self.compared, self.variant = deviations, compared, variant
            if not deviations:
                break

    def _counts_steps(self) -> bool:
        """Whether a class of the user's own keeps a counter, which only a correction of the bias needs."""
        off = any(group.get(name) is False for group in self.update.settings for name in _CORRECTIONS)
        counts = any(COUNTER in item.state_after for item in self.update.parameters)
        return self.update.is_own and not off and (counts or any(COUNTER in group for group in self.update.settings))

    def _with(self, formula: Formula, variant: Mapping[str, Any]) -> tuple[list[Deviation], dict[str, int]]:
        deviations: list[Deviation] = []
        compared: dict[str, int] = {}
        self.not_compared = []
        for batch in _batches(self.update.parameters, alone=formula.whole):
            inputs = self._inputs(batch, variant)
            if inputs is None:
                self.not_compared += [item.name for item in batch.parameters]
                continue
            with np.errstate(all="ignore"):
                outputs = formula.compute(inputs)
            if self.update.is_own and not _keeps(batch, outputs):
                outputs = {}
            if PARAMETER not in outputs:
                self.not_compared += [item.name for item in batch.parameters]
            for what, right in outputs.items():
                found, count = compared_with(
                    batch, what, right, by_projection=formula.by_projection and what == PARAMETER
                )
                deviations += found
                compared[what] = compared.get(what, 0) + count
        return deviations, compared

    def _inputs(self, batch: Batch, variant: Mapping[str, Any]) -> Inputs | None:
        settings = {**self.update.settings[batch.parameters[0].group], **variant}
        counters = [_counter(item, settings) for item in batch.parameters]
        if self.formula is not None and self.formula.counts and any(counter is None for counter in counters):
            return None
        first = batch.parameters[0]
        of_states = (place.dtype for name, place in first.state_places.items() if name != COUNTER)
        unit = coarsest_roundoff((first.place_before.dtype, first.gradient_dtype, *of_states))
        tiny = smallest(first.place_before.dtype)

        def number(arrays: Iterable[Array]) -> Rounded:
            if batch.is_whole:
                return Rounded(next(iter(arrays)).reshape(-1), unit=unit, tiny=tiny)
            return Rounded(batch.joined(arrays), unit=unit, tiny=tiny)

        state = {
            name: number(item.state_before[name] for item in batch.parameters)
            for name in first.state_before
            if name != COUNTER and first.state_before[name].size
        }
        steps = batch.joined(np.array([float(counter or 0)]) for counter in counters)
        return Inputs(
            number(item.before for item in batch.parameters),
            number(item.gradient for item in batch.parameters if item.gradient is not None),
            state,
            step=steps,
            settings=settings,
            hyper_precision=self.update.hyper_precision,
            is_first=all(counter in (None, 1) for counter in counters),
            shape=first.shape,
            is_whole=batch.is_whole,
        )


def _counter(item: UpdatedParameter, settings: Mapping[str, Any]) -> int | None:
    """Number of the step that the parameter is in, from 1."""
    # As it stands after the step, which is what the step has used: whether it is right, another law says.
    if (after := item.state_after.get(COUNTER)) is not None and after.size == 1:
        return max(1, int(after.reshape(-1)[0]))
    if (before := item.state_before.get(COUNTER)) is not None and before.size == 1:
        return int(before.reshape(-1)[0]) + 1
    return int(settings[COUNTER]) if isinstance(settings.get(COUNTER), (int, float)) else item.steps or None


def _batches(parameters: Iterable[UpdatedParameter], *, alone: bool) -> Iterator[Batch]:
    kinds: dict[Any, list[UpdatedParameter]] = {}
    for item in parameters:
        if item.gradient is None or not item.before.size or item.gradient.size != item.before.size:
            continue
        if alone and item.is_whole:
            yield Batch([item], is_whole=True)
            continue
        dtypes = tuple(sorted((name, place.dtype) for name, place in item.state_places.items()))
        states = tuple(sorted(name for name, value in item.state_before.items() if value.size))
        kinds.setdefault((item.group, item.place_before.dtype, item.gradient_dtype, dtypes, states), []).append(item)
    yield from map(Batch, kinds.values())


def _keeps(batch: Batch, outputs: Iterable[str]) -> bool:
    """Whether the optimizer keeps the states of the formula: under other names nobody knows what they are."""
    return all(what in item.state_after for item in batch.parameters for what in outputs if what != PARAMETER)


def compared_with(
    batch: Batch, what: str, right: Rounded, *, by_projection: bool = False
) -> tuple[list[Deviation], int]:
    """Deviations above the tolerance, and how many tensors were compared."""
    arrays = [item.after if what == PARAMETER else item.state_after.get(what) for item in batch.parameters]
    if any(
        array is None or (array.size not in (1, size, right.value.size)) for array, size in zip(arrays, batch.sizes)
    ):
        return [], 0
    if batch.is_whole:
        tested = np.asarray(arrays[0], np.float64).reshape(-1)
    else:
        tested = batch.joined(array for array in arrays if array is not None)
    value, error = right.value.reshape(-1), np.broadcast_to(right.error, right.value.shape).reshape(-1)
    if tested.size != value.size:
        return [], 0
    if by_projection:
        found_along = _projected(batch.parameters[0], tested, value)
        return ([], 0) if found_along is None else (found_along, 1)
    dtypes = [item.place_after.dtype if what == PARAMETER else _state_dtype(item, what) for item in batch.parameters]
    unit = coarsest_roundoff(dtypes)
    tolerance = Times.RUNNING_ERROR * (error + 2 * unit * np.abs(value)) + smallest(dtypes[0])
    with np.errstate(invalid="ignore"):
        sizes = np.abs(tested - value) / tolerance
    sizes[np.isnan(sizes) & ~np.isfinite(value)] = 0.0  # NaN and Inf of a gradient are its own matter
    sizes[np.isnan(sizes)] = np.inf
    sizes[~np.isfinite(value) | ~np.isfinite(tolerance)] = 0.0
    if not np.any(sizes > 1):
        return [], len(batch.parameters)
    found = []
    ends = np.cumsum([0, *([value.size] if batch.is_whole else batch.sizes)])
    for item, begin, end in zip(batch.parameters, ends, ends[1:]):
        worst = int(begin + np.argmax(sizes[begin:end]))
        if sizes[worst] > 1:
            scale = None
            if what == PARAMETER:
                scale = _factor(tested[begin:end], value[begin:end], item.before.reshape(-1), tolerance[begin:end])
            found.append(Deviation(item, what, float(sizes[worst]), float(tested[worst]), float(value[worst]), scale))
    return found, len(batch.parameters)


def _projected(item: UpdatedParameter, tested: Array, right: Array) -> list[Deviation] | None:
    """The deviation of a parameter's change along that of its formula; None where rounding hides it."""
    before = item.before.reshape(-1)
    wanted = right - before
    length = float(wanted @ wanted)
    if length < float(before @ before) * (Roundoffs.HIDDEN * coarsest_roundoff([item.place_after.dtype])) ** 2:
        return None
    share = float((tested - before) @ wanted) / length if length > 0 else 1.0
    size = abs(share - 1) / Relative.ALONG_UPDATE
    if not size > 1:
        return []
    worst = int(np.argmax(np.abs(tested - right)))
    return [Deviation(item, PARAMETER, size, float(tested[worst]), float(right[worst]), share)]


def _state_dtype(item: UpdatedParameter, what: str) -> str:
    place = item.state_places.get(what)
    return item.place_after.dtype if place is None else place.dtype


def _factor(tested: Array, right: Array, before: Array, tolerance: Array) -> float | None:
    """The one factor between the changes, of elements that changed visibly; None where there is none."""
    changed = np.abs(right - before) > 8 * tolerance
    if np.count_nonzero(changed) < 4:
        return None
    factors = (tested - before)[changed] / (right - before)[changed]
    middle = float(np.median(factors))
    return middle if np.all(np.abs(factors - middle) < 0.02 * max(abs(middle), 0.05)) else None
