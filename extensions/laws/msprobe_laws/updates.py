"""Laws on what `optimizer.step` gets and leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from msprobe_laws.formula_check import COUNTER, Deviation, FormulaCheck
from msprobe_laws.formulas import FORMULAS, PARAMETER
from msprobe_laws.law import Checked, Law, Unchecked, Violation, few_digits
from msprobe_laws.observation import Array, Update, UpdatedParameter
from pytest_msprobe.numerics.expected import Share


class UpdateFormula(Law[FormulaCheck]):
    """The parameter after the step."""

    name = "update-formula"
    sentence = "A parameter changes by the formula of its optimizer, with the hyper-parameters of its group."
    source = "documentation and paper of each optimizer, see formulas.py"
    tolerance = (
        "twice the bound of a running error analysis of the formula (Higham, section 3.3), in the unit roundoff of the "
        "coarsest dtype among parameter, gradient and state"
    )

    def check(self, computed: FormulaCheck) -> Checked:
        """Compare the parameters of an update; where a state is wrong already, that is said by the other law."""
        if computed.reason:
            return Unchecked(computed.reason)
        findings = []
        for item in computed.update.parameters:
            is_read = item.gradient is None and item.before.values.size == item.after.values.size
            if is_read and np.any(item.before.values != item.after.values):
                findings.append(self.found(item.name, "it has no gradient, and the step changes it"))
        wrong_states = {deviation.parameter.name for deviation in computed.deviations if deviation.what != PARAMETER}
        for deviation in computed.deviations:
            name = deviation.parameter.name
            if deviation.what == PARAMETER and name not in wrong_states:
                otherwise = _explained(computed, deviation)
                if not otherwise.is_decay:  # which another law says
                    findings.append(self.found(name, _difference(computed, deviation, otherwise), deviation.size))
        if not findings and not computed.compared.get(PARAMETER):
            return Unchecked(_why_none(computed))
        return findings


def _difference(computed: FormulaCheck, item: Deviation, otherwise: _Otherwise) -> str:
    assert computed.formula is not None
    name, more = computed.formula.name, otherwise.said
    if item.scale == 0:
        return f"it does not change; {name} changes it"
    if item.scale is not None:
        more = f": its change is {few_digits(item.scale)} times that of {name}"
    return f"an element is {item.tested:.9g} after the step where {name} gives {item.right:.9g}{more}"


@dataclass(frozen=True, slots=True)
class _Otherwise:
    """What an update may be instead of its formula.

    Attributes:
        words: for it; "" where nothing is known.
        formula: another one, which is Adam or AdamW; "" for the same.
        settings: other ones.
        is_decay: whether it treats weight decay otherwise.
        is_opposite: whether the gradient has the opposite sign.
    """

    words: str = ""
    formula: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_decay: bool = False
    is_opposite: bool = False

    @property
    def said(self) -> str:
        """The words, as they stand behind a message."""
        return f"; it is what {self.words} gives" if self.words else ""


_OTHERWISE = (
    _Otherwise("decay coupled to the gradient (L2)", "Adam", {"decoupled_weight_decay": False}, is_decay=True),
    _Otherwise("decoupled decay", "AdamW", is_decay=True),
    _Otherwise("the formula without weight decay", settings={"weight_decay": 0.0}, is_decay=True),
    _Otherwise("the formula without bias correction", settings={"no_bias_correction": True}),
    _Otherwise("the formula with eps added before the bias correction", settings={"eps_is_corrected_too": True}),
    _Otherwise("the formula without nesterov", settings={"nesterov": False}),
    _Otherwise("the formula with nesterov", settings={"nesterov": True}),
    _Otherwise("the formula without dampening", settings={"dampening": 0.0}),
    _Otherwise("the formula without amsgrad", settings={"amsgrad": False}),
    _Otherwise("the formula with the opposite sign of the gradient", is_opposite=True),
)


def _explained(computed: FormulaCheck, item: Deviation) -> _Otherwise:
    """Return what the update is instead of its formula, as far as that is known."""
    assert computed.formula is not None
    declared = {**computed.update.settings[item.parameter.group], **computed.variant}
    for otherwise in _OTHERWISE:
        settings = otherwise.settings
        if otherwise.is_opposite:
            settings = {"maximize": not declared.get("maximize", False)}
        if otherwise.formula:
            is_other = computed.formula.name in ("Adam", "AdamW") and computed.formula.name != otherwise.formula
        else:
            is_other = any((declared.get(key) or False) != value for key, value in settings.items())
        formula = FORMULAS[otherwise.formula] if otherwise.formula else computed.formula
        if is_other and computed.is_what_gives(item.what, item.parameter, formula, settings):
            return otherwise
    return _Otherwise()


def _why_none(computed: FormulaCheck) -> str:
    if not computed.update.has_gradients:
        return "no parameter has a gradient"
    kept = {name for item in computed.update.parameters for name in item.after.states}
    if computed.formula is not None and computed.update.is_own and kept.isdisjoint(computed.formula.states):
        return f"{computed.update.optimizer} does not keep the states of {computed.formula.name} under its names"
    if computed.formula is not None and computed.formula.whole and computed.not_compared:
        return f"{computed.formula.name} takes sums over the whole parameter, and only samples of elements are here"
    return "no values of parameters, gradients and states that belong together are here"


class MomentsFormula(Law[FormulaCheck]):
    """The states after the step."""

    name = "moments-formula"
    sentence = "Moments are made of the moments before the step and of this parameter's own gradient."
    source = UpdateFormula.source
    tolerance = UpdateFormula.tolerance

    def check(self, computed: FormulaCheck) -> Checked:
        """Compare the states of an update."""
        if computed.reason:
            return Unchecked(computed.reason)
        findings = []
        for item in computed.deviations:
            if item.what == PARAMETER:
                continue
            other = _gradient_behind(computed, item)
            otherwise = _Otherwise() if other else _explained(computed, item)
            if otherwise.is_decay:  # which another law says
                continue
            more = f"; it is made of the gradient of {other}" if other else otherwise.said
            message = (
                f"{item.what} has an element {item.tested:.6g} after the step where its gradient and "
                f"{item.what} before give {item.right:.6g}{more}"
            )
            findings.append(self.found(item.parameter.name, message, item.size))
        if findings or any(count for what, count in computed.compared.items() if what != PARAMETER):
            return findings
        if computed.compared:
            return Unchecked("the optimizer keeps no moments", is_moot=True)
        return Unchecked(_why_none(computed))


def _gradient_behind(computed: FormulaCheck, item: Deviation) -> str:
    """Return the parameter of the same shape whose gradient explains the moment; "" for none."""
    parameter = item.parameter
    assert computed.formula is not None
    for other in computed.update.parameters:
        gradient, is_like = other.gradient, other.shape == parameter.shape and other.name != parameter.name
        if is_like and gradient is not None and gradient.size == parameter.before.values.size:
            exchanged = replace(parameter, gradient=gradient)
            if computed.is_what_gives(item.what, exchanged, computed.formula, {}):
                return other.name
    return ""


class DecayAsDeclared(Law[FormulaCheck]):
    """Coupled and decoupled weight decay."""

    name = "decay-as-declared"
    sentence = (
        "Weight decay is added to the gradient (SGD, Adam) or taken from the parameter (AdamW), as the class says."
    )
    source = "Loshchilov and Hutter, arXiv:1711.05101, algorithm 2"
    tolerance = UpdateFormula.tolerance

    def check(self, computed: FormulaCheck) -> Checked:
        """Look whether another treatment of decay explains what differs."""
        if computed.reason:
            return Unchecked(computed.reason)
        if not any(group.get("weight_decay") for group in computed.update.settings) and not computed.deviations:
            return Unchecked("there is no weight decay", is_moot=True)
        if not computed.compared.get(PARAMETER):
            return Unchecked(_why_none(computed))
        findings: dict[str, Violation] = {}
        for item in computed.deviations:
            name = item.parameter.name
            otherwise = _explained(computed, item)
            if otherwise.is_decay and name not in findings:
                changes = f"{item.what} changes as {otherwise.words} changes it"
                message = f"{changes}, and the class is {computed.update.optimizer}"
                findings[name] = self.found(name, message, item.size)
        return list(findings.values())


class StepCounter(Law[Update]):
    """Counters of steps."""

    name = "step-counter"
    sentence = "The counter of each parameter that has a gradient advances by one in a step."
    source = "Kingma and Ba, arXiv:1412.6980, algorithm 1 (t <- t + 1); torch.optim"

    def check(self, update: Update) -> Checked:
        """Compare counters before and after."""
        findings, checked = [], 0
        for item in update.parameters:
            after = item.after.states.get(COUNTER)
            if after is None or after.size != 1:
                continue
            checked += 1
            before = item.before.states.get(COUNTER)
            start = 0.0 if before is None or before.size != 1 else float(before.reshape(-1)[0])
            moved = float(after.reshape(-1)[0]) - start
            if moved != (item.gradient is not None):
                wanted = "1" if item.gradient is not None else "0, since there is no gradient"
                message = f"its counter goes from {start:g} to {start + moved:g}, by {moved:g} in place of {wanted}"
                findings.append(self.found(item.name, message))
        if not checked:
            return Unchecked("the optimizer keeps no counter of steps for each parameter", is_moot=True)
        return findings


class OwnState(Law[Update]):
    """Aliases among parameters, gradients and states."""

    name = "own-state"
    sentence = "No two parameters share a moment or a counter, and none is the memory of a parameter."
    source = "torch.optim: one state for each parameter (zeros_like); OpGuard reports such aliases"

    def check(self, update: Update) -> Checked:
        """Look for equal addresses."""
        owners: dict[int, tuple[str, str]] = {}
        findings, checked = [], 0
        for item in update.parameters:
            if item.after.place.address:
                other = owners.setdefault(item.after.place.address, (item.name, "the parameter"))
                if other[0] != item.name:
                    findings.append(self.found(item.name, f"it is the same memory as the parameter {other[0]}"))
        for item in update.parameters:
            for name, place in item.after.state_places.items():
                if not place.address:
                    continue
                checked += 1
                other = owners.setdefault(place.address, (item.name, name))
                if other != (item.name, name):
                    whose = "its own" if other[0] == item.name else f"{other[0]}'s"
                    what = f"{whose} {other[1]}" if other[1] != "the parameter" else f"the parameter {other[0]}"
                    findings.append(self.found(item.name, f"its state {name} is the same memory as {what}"))
        return findings if checked else Unchecked("the optimizer keeps no state in tensors", is_moot=True)


class StorageKept(Law[Update]):
    """What a step may not change of a parameter."""

    name = "storage-kept"
    sentence = "A step changes the values of a parameter in place: its dtype, device, shape and memory stay."
    source = "torch.optim updates in place, on which tied weights, DDP's buckets and fused kernels rely"

    def __init__(self) -> None:
        #: dtype that the last step left, by optimizer and parameter.
        self._left: dict[str, dict[str, str]] = {}

    def check(self, update: Update) -> Checked:
        """Compare places before and after, and dtypes with those that the step before has left."""
        findings = []
        dtypes = self._left.get(update.optimizer, {})
        self._left[update.optimizer] = {item.name: item.after.place.dtype for item in update.parameters}
        for item in update.parameters:
            before, after = item.before.place, item.after.place
            if (dtype := dtypes.get(item.name, before.dtype)) != before.dtype:
                message = f"its dtype is {before.dtype}, and the step before has left it as {dtype}"
                findings.append(self.found(item.name, message))
                continue
            for what in ("dtype", "device", "shape"):
                if getattr(before, what) != getattr(after, what):
                    change = f"{getattr(before, what)} before the step and {getattr(after, what)} after it"
                    findings.append(self.found(item.name, f"its {what} is {change}"))
                    break
            else:
                if before.address and after.address and before.address != after.address:
                    findings.append(self.found(item.name, "the step puts it into other memory"))
        return findings if update.parameters else Unchecked("the optimizer has no parameters")


class SomethingUpdated(Law[Update]):
    """An optimizer without gradients."""

    name = "something-updated"
    sentence = "A step gets a gradient of at least one of its parameters, and makes none of them NaN or Inf."
    source = "torch.optim passes over parameters whose gradient is None, without a word; torch.amp.GradScaler.step"

    def check(self, update: Update) -> Checked:
        """Look for a gradient."""
        if not update.parameters:
            return Unchecked("this process has no parameters of the optimizer")
        broken = [
            item.name
            for item in update.parameters
            if not np.all(np.isfinite(item.after.values)) and np.all(np.isfinite(item.before.values))
        ]
        if broken:
            return [Violation.of(self.name, broken, "the step makes it NaN or Inf")]
        if update.has_gradients:
            return []
        message = (
            f"none of the {len(update.parameters)} parameters of {update.optimizer} has a gradient: the "
            "step updates nothing (does it hold the parameters that the model uses?)"
        )
        return [Violation.of(self.name, update.names, message)]


#: Steps with a learning rate of 0 that are no warm-up.
_IDLE = 5
#: Optimizers one after another with one step each that are no accident.
_NEW = 3


class HyperParameters(Law[Update]):
    """Ranges of hyper-parameters, and a learning rate that stays 0 in all groups."""

    name = "hyper-parameters"
    sentence = "Hyper-parameters are finite numbers for which the formula is defined."
    source = "checks in the constructors of torch.optim, which what is set later passes by"

    def __init__(self) -> None:
        #: Steps one after another in which nothing is learned, by optimizer.
        self._idle: dict[str, int] = {}

    def check(self, update: Update) -> Checked:
        """Look at learning rate, decay and factors of moments."""
        findings, checked = [], 0
        is_idle = bool(update.settings) and all(group.get("lr") == 0 for group in update.settings)
        self._idle[update.optimizer] = self._idle.get(update.optimizer, 0) + 1 if is_idle else 0
        if self._idle[update.optimizer] == _IDLE:
            findings.append(self.found("lr", f"it is 0 in all groups, in {_IDLE} steps: nothing is learned"))
        for number, group in enumerate(update.settings):
            values: list[tuple[str, Any, float]] = [
                (name, group.get(name), np.inf) for name in ("lr", "weight_decay", "eps", "momentum")
            ]
            betas = group.get("betas")
            if isinstance(betas, (tuple, list)):
                values += [(f"betas[{index}]", value, 1.0) for index, value in enumerate(betas)]
            for name, value, limit in values:
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    checked += 1
                    if not (0 <= value < limit) or not np.isfinite(value):
                        findings.append(self.found(f"group {number}", f"{name} is {value:g}"))
        return findings if checked else Unchecked("hyper-parameters are not known")


class UpdatesArrive(Law[FormulaCheck]):
    """Updates below the resolution of the dtype."""

    name = "updates-arrive"
    sentence = "Elements change by their update: it is not below half a unit in the last place."
    source = (
        "Kalamkar et al., arXiv:1905.12322 (bfloat16 needs float32 master weights); Zamirai et al., arXiv:2010.06192"
    )
    tolerance = (
        "three quarters of the elements of an optimizer's parameters of one dtype, in three steps one after another"
    )

    def __init__(self, patience: int = 3) -> None:
        self._patience = patience
        self._times: dict[tuple[str, str], int] = {}

    def check(self, computed: FormulaCheck) -> Checked:
        """Return the share of elements that stay although their gradient is not zero."""
        by_dtype: dict[str, list[tuple[float, int, UpdatedParameter]]] = {}
        for item in computed.update.parameters:
            size = item.before.values.size
            if item.gradient is None or not item.gradient.size == size == item.after.values.size:
                continue
            settings = computed.update.settings[item.group]
            asked = (item.gradient != 0) & np.isfinite(item.gradient) & (item.before.values != 0)
            if not np.any(asked) or settings.get("lr") == 0:
                continue
            lost = float(np.mean(item.after.values[asked] == item.before.values[asked]))
            by_dtype.setdefault(item.before.place.dtype, []).append((lost, item.size, item))
        if not by_dtype:
            return Unchecked("no values of parameters and gradients are here")
        findings = []
        for dtype, shares in by_dtype.items():
            total = sum(size for _, size, _ in shares)
            share = sum(lost * size for lost, size, _ in shares) / total
            key = computed.update.optimizer, dtype
            self._times[key] = self._times.get(key, 0) + 1 if share > Share.LOST_UPDATES else 0
            if self._times[key] == self._patience:
                worst = sorted(shares, key=lambda entry: -entry[0] * entry[1])
                names = [item.name for lost, _, item in worst if lost > Share.LOST_UPDATES] or [worst[0][2].name]
                message = (
                    f"{100 * share:.0f} % of the elements of {dtype} parameters stay as they are, "
                    f"in {self._patience} steps, although their gradients are not zero: the update is lost in rounding "
                    "(it has no master weights?)"
                )
                findings.append(Violation.of(self.name, names, message))
        return findings


class StateContinues(Law[Update]):
    """States between two steps."""

    name = "state-continues"
    sentence = "A step gets the moments and counters that the step before has left."
    source = (
        "Kingma and Ba, algorithm 1: m and v of step t-1; only load_state_dict may put others there, or who puts the "
        "parameter anew (Zhang et al., arXiv:1907.08610)"
    )

    def __init__(self) -> None:
        self._left: dict[str, dict[str, tuple[Mapping[str, Array], int, Array]]] = {}
        #: Optimizers whose states were loaded since their last step.
        self._loaded: set[str] = set()
        #: The optimizer whose first step was the last of all first steps, and how many had taken no other step.
        self._newest, self._anew = "", 0

    def forget(self, optimizer: str = "") -> None:
        """Forget the states of all optimizers, which were replaced on purpose, or of one that is read elsewhere now."""
        for name in [optimizer] if optimizer else list(self._left):
            self._left.pop(name, None)

    def loaded(self, optimizer: str) -> None:
        """Note that the states of an optimizer were replaced on purpose."""
        self._loaded.add(optimizer)

    def _is_made_anew(self, update: Update) -> bool:
        """Return whether optimizers before this one took their first step alone, each from where the last one ended."""
        nothing: tuple[Mapping[str, Array], int, Array] = {}, -1, np.empty(0)
        states = [(item, *self._left.get(self._newest, {}).get(item.name, nothing)) for item in update.parameters]
        is_next = bool(states) and all(
            number == 0
            and any(map(np.any, state.values()))
            and item.before.values.size
            and np.array_equal(item.before.values, after)
            for item, state, number, after in states
        )
        if is_next:
            self._left.pop(self._newest)
        self._newest, self._anew = update.optimizer, self._anew + 1 if is_next else 0
        return self._anew == _NEW

    def check(self, update: Update) -> Checked:
        """Compare states before the step with those that the last one left."""
        is_anew = update.number == 0 and self._is_made_anew(update)
        is_loaded = update.optimizer in self._loaded
        self._loaded.discard(update.optimizer)
        before = self._left.get(update.optimizer)
        self._left[update.optimizer] = {
            item.name: (item.after.states, update.number, item.after.values) for item in update.parameters
        }
        has_state = any(item.before.states or item.after.states for item in update.parameters)
        if not has_state and not any(state for state, *_ in (before or {}).values()):
            return Unchecked("the optimizer keeps no state", is_moot=True)
        if is_anew:
            message = f"it is in a new optimizer in each of {_NEW + 1} steps: no moment is older than one step"
            return [Violation.of(self.name, update.names, message)]
        if before is None:
            return Unchecked("one step was seen")
        findings, checked = [], 0
        for item in update.parameters:
            last, number, parameter = before.get(item.name, ({}, -1, item.before.values))
            if number != update.number - 1 or (item.after.states.keys() and item.gradient is None):
                continue
            if not np.array_equal(item.before.values, parameter, equal_nan=True):
                continue  # the parameter was put anew, as Lookahead does, and its state may be with it
            if is_loaded:
                was, at = (np.max(state.get(COUNTER, 0.0), initial=0.0) for state in (last, item.before.states))
                if 0 < at < was:
                    message = f"its state is that of step {at:g} again, and the parameter that of step {was:g}"
                    findings.append(self.found(item.name, message))
                continue
            for name, value in last.items():
                now = item.before.states.get(name)
                if now is None or now.size != value.size or not value.size:
                    if now is None and np.any(value != 0):
                        checked += 1
                        findings.append(self.found(item.name, f"its state {name} is gone since the step before"))
                    continue
                checked += 1
                if not np.array_equal(now, value, equal_nan=True):
                    message = f"its state {name} is not what the step before has left"
                    findings.append(self.found(item.name, message))
                    break
        return findings if checked or findings else Unchecked("no state of two steps one after another is here")


#: Laws on the formula of a step, and on the step itself.
OF_FORMULA: tuple[type[Law[FormulaCheck]], ...] = (UpdateFormula, MomentsFormula, DecayAsDeclared, UpdatesArrive)
OF_UPDATE: tuple[type[Law[Update]], ...] = (StepCounter, OwnState, StorageKept, SomethingUpdated, HyperParameters)


def summed_up(findings: Sequence[Violation]) -> Iterator[Violation]:
    """Return one finding for those of one law with the same words, the worst first, with the other names."""
    by_kind: dict[tuple[str, str], list[Violation]] = {}
    for item in findings:
        by_kind.setdefault((item.law, _kind_of(item.message)), []).append(item)
    for items in by_kind.values():
        worst = max(items, key=lambda item: -1.0 if item.size is None else item.size)
        names = [item.parameter for item in items if item is not worst]
        yield Violation(worst.law, worst.parameter, worst.message, worst.size, (*worst.others, *names))


def _kind_of(message: str) -> str:
    return " ".join(word for word in message.split() if not re.search(r"[0-9.]", word))[:60]
