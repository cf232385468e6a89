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
from pytest_msprobe.numerics.expected import Relative, Roundoffs, Share, Times

#: The state that counts the steps of a parameter.
COUNTER = "step"
#: Settings by which own classes leave out the correction of the bias.
_CORRECTIONS = ("correct_bias", "bias_correction", "debias")


@dataclass(frozen=True, slots=True)
class ParameterBatch:
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
        return [item.before.values.size for item in self.parameters]

    def joined(self, arrays: Iterable[Array]) -> Array:
        """Return the elements of all parameters; a state of one number is repeated for each of its elements."""
        flat = [array.reshape(-1) for array in arrays]
        if self.is_whole:
            return flat[0]
        for at, size in enumerate(self.sizes):
            if flat[at].size != size:
                flat[at] = np.full(size, flat[at][0])
        return np.concatenate(flat)


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
            variants = [variant for variant in variants if not variant.get("no_bias_correction")] or variants
        for number, variant in enumerate(variants):
            deviations, compared = self._with(formula, variant)
            if not number or len(deviations) < len(self.deviations):
                self.deviations, self.compared, self.variant = deviations, compared, variant
            if not deviations:
                break

    def _counts_steps(self) -> bool:
        """Return whether a class of the user's own keeps a counter, which only a correction of the bias needs."""
        off = any(group.get(name) is False for group in self.update.settings for name in _CORRECTIONS)
        counts = any(COUNTER in item.after.states for item in self.update.parameters)
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
                deviating, count = compared_with(
                    batch, what, right, by_projection=formula.by_projection and what == PARAMETER
                )
                deviations += deviating
                compared[what] = compared.get(what, 0) + count
        return deviations, compared

    def is_what_gives(
        self, what: str, parameter: UpdatedParameter, formula: Formula, settings: Mapping[str, Any]
    ) -> bool:
        """Return whether a formula with other settings gives the parameter or state that stands after the step."""
        batch = ParameterBatch([parameter], is_whole=parameter.is_whole and formula.whole)
        inputs = self._inputs(batch, {**self.variant, **settings})
        if inputs is None:
            return False
        with np.errstate(all="ignore"):
            outputs = formula.compute(inputs)
        return what in outputs and not compared_with(batch, what, outputs[what])[0]

    def _inputs(self, batch: ParameterBatch, variant: Mapping[str, Any]) -> Inputs | None:
        settings = {**self.update.settings[batch.parameters[0].group], **variant}
        counters = [_counter(item, settings) for item in batch.parameters]
        if self.formula is not None and self.formula.counts and any(counter is None for counter in counters):
            return None
        first = batch.parameters[0]
        dtypes = [first.before.place.dtype, first.gradient_dtype]
        dtypes += [place.dtype for name, place in first.after.state_places.items() if name != COUNTER]
        unit, tiny = coarsest_roundoff(dtypes), smallest(first.before.place.dtype)

        def number(arrays: Iterable[Array]) -> Rounded:
            return Rounded(batch.joined(arrays), unit=unit, tiny=tiny)

        states = {}
        for name, value in first.before.states.items():
            if name != COUNTER and value.size:
                states[name] = number(item.before.states[name] for item in batch.parameters)
        values = number(item.before.values for item in batch.parameters)
        gradients = number(item.gradient for item in batch.parameters if item.gradient is not None)
        return Inputs(
            values,
            gradients,
            states,
            step=batch.joined(np.array([float(counter or 0)]) for counter in counters),
            settings=settings,
            hyper_precision=self.update.hyper_precision,
            is_first=all(counter in (None, 1) for counter in counters),
            shape=first.shape,
            is_whole=batch.is_whole,
        )


def _counter(item: UpdatedParameter, settings: Mapping[str, Any]) -> int | None:
    """Return the number of the step that the parameter is in, from 1."""
    # As it stands after the step, which is what the step has used: whether it is right, another law says.
    if (after := item.after.states.get(COUNTER)) is not None and after.size == 1:
        return max(1, int(after.reshape(-1)[0]))
    if (before := item.before.states.get(COUNTER)) is not None and before.size == 1:
        return int(before.reshape(-1)[0]) + 1
    return int(settings[COUNTER]) if isinstance(settings.get(COUNTER), (int, float)) else item.steps or None


def _batches(parameters: Iterable[UpdatedParameter], *, alone: bool) -> Iterator[ParameterBatch]:
    kinds: dict[Any, list[UpdatedParameter]] = {}
    for item in parameters:
        if item.gradient is None or item.is_term:
            continue
        if not item.before.values.size or item.gradient.size != item.before.values.size:
            continue
        if alone and item.is_whole:
            yield ParameterBatch([item], is_whole=True)
            continue
        dtypes = tuple(sorted((name, place.dtype) for name, place in item.after.state_places.items()))
        states = tuple(sorted(name for name, value in item.before.states.items() if value.size))
        kinds.setdefault((item.group, item.before.place.dtype, item.gradient_dtype, dtypes, states), []).append(item)
    yield from map(ParameterBatch, kinds.values())


def _keeps(batch: ParameterBatch, outputs: Iterable[str]) -> bool:
    """Return whether the optimizer keeps the states of the formula: under other names nobody knows what they are."""
    return all(what in item.after.states for item in batch.parameters for what in outputs if what != PARAMETER)


def compared_with(
    batch: ParameterBatch, what: str, right: Rounded, *, by_projection: bool = False
) -> tuple[list[Deviation], int]:
    """Return the deviations above the tolerance, and how many tensors were compared."""
    arrays, dtypes = [], []
    for item, size in zip(batch.parameters, batch.sizes):
        array, dtype = _after(item, what)
        if array is None or array.size not in (1, size, right.value.size):
            return [], 0
        arrays.append(array)
        dtypes.append(dtype)
    tested = batch.joined(arrays)
    value, error = right.value.reshape(-1), np.broadcast_to(right.error, right.value.shape).reshape(-1)
    if tested.size != value.size:
        return [], 0
    if by_projection:
        found_along = _projected(batch.parameters[0], tested, value)
        return ([], 0) if found_along is None else (found_along, 1)
    unit = coarsest_roundoff(dtypes)
    tolerance = Times.RUNNING_ERROR * (error + 2 * unit * np.abs(value)) + smallest(dtypes[0])
    with np.errstate(invalid="ignore"):
        sizes = np.abs(tested - value) / tolerance
    sizes[np.isnan(sizes) & ~np.isfinite(value)] = 0.0  # NaN and Inf of a gradient are its own matter
    sizes[np.isnan(sizes)] = np.inf
    sizes[~np.isfinite(value) | ~np.isfinite(tolerance)] = 0.0
    if not np.any(sizes > 1):
        return [], len(batch.parameters)
    deviations = []
    ends = np.cumsum([0, *([value.size] if batch.is_whole else batch.sizes)])
    for item, begin, end in zip(batch.parameters, ends, ends[1:]):
        worst = int(begin + np.argmax(sizes[begin:end]))
        if sizes[worst] > 1:
            scale = None
            if what == PARAMETER:
                scale = _factor(
                    tested[begin:end], value[begin:end], item.before.values.reshape(-1), tolerance[begin:end]
                )
            deviations.append(
                Deviation(item, what, float(sizes[worst]), float(tested[worst]), float(value[worst]), scale)
            )
    return deviations, len(batch.parameters)


def _projected(item: UpdatedParameter, tested: Array, right: Array) -> list[Deviation] | None:
    """Return the deviation of a parameter's change along that of its formula; None where rounding hides it."""
    before = item.before.values.reshape(-1)
    wanted = right - before
    length = float(wanted @ wanted)
    if length < float(before @ before) * (Roundoffs.HIDDEN * coarsest_roundoff([item.after.place.dtype])) ** 2:
        return None
    share = float((tested - before) @ wanted) / length if length > 0 else 1.0
    size = abs(share - 1) / Relative.ALONG_UPDATE
    if not size > 1:
        return []
    worst = int(np.argmax(np.abs(tested - right)))
    return [Deviation(item, PARAMETER, size, float(tested[worst]), float(right[worst]), share)]


def _after(item: UpdatedParameter, what: str) -> tuple[Array | None, str]:
    """Return (elements, dtype) of the parameter or of one of its states after the step."""
    if what == PARAMETER:
        return item.after.values, item.after.place.dtype
    place = item.after.state_places.get(what, item.after.place)
    return item.after.states.get(what), place.dtype


def _factor(tested: Array, right: Array, before: Array, tolerance: Array) -> float | None:
    """Return the one factor between the changes, of elements that changed visibly; None where there is none."""
    changed = np.abs(right - before) > Times.VISIBLE * tolerance
    if np.count_nonzero(changed) < 4:
        return None
    factors = (tested - before)[changed] / (right - before)[changed]
    middle = float(np.median(factors))
    allowed = Relative.SAME_FACTORS * max(abs(middle), Share.LEAST_OF_UPDATE)
    return middle if np.all(np.abs(factors - middle) < allowed) else None
