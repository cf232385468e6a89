"""Laws on what `optimizer.step` gets and leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from msprobe_laws.formula_check import COUNTER, Batch, Deviation, FormulaCheck, compared_with
from msprobe_laws.formulas import FORMULAS, PARAMETER
from msprobe_laws.law import Checked, Finding, Law, Unchecked, few_digits
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

    def check(self, seen: FormulaCheck) -> Checked:
        """Compare the parameters of an update; where a state is wrong already, that is said by the other law."""
        if seen.reason:
            return Unchecked(seen.reason)
        findings = []
        wrong_states = {item.parameter.name for item in seen.deviations if item.what != PARAMETER}
        findings += [
            self.found(item.name, "it has no gradient, and the step changes it")
            for item in seen.update.parameters
            if item.gradient is None and item.before.size == item.after.size and np.any(item.before != item.after)
        ]
        findings += [
            self.found(item.parameter.name, self._said(seen, item), item.size)
            for item in seen.deviations
            if item.what == PARAMETER
            and item.parameter.name not in wrong_states
            and not _is_decay(_explained(seen, item))
        ]
        if not findings and not seen.compared.get(PARAMETER):
            return Unchecked(_why_none(seen))
        return findings

    def _said(self, seen: FormulaCheck, item: Deviation) -> str:
        assert seen.formula is not None
        if item.scale is not None:
            if item.scale == 0:
                return f"it does not change; {seen.formula.name} changes it"
            more = f": its change is {few_digits(item.scale)} times that of {seen.formula.name}"
        elif explanation := _explained(seen, item):
            more = f"; it is what {explanation} gives"
        else:
            more = ""
        return f"an element is {item.tested:.9g} after the step where {seen.formula.name} gives {item.right:.9g}{more}"


#: What an update may be instead: (words, formula, settings).
_OTHERWISE: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("decay coupled to the gradient (L2)", "Adam", {"decoupled_weight_decay": False}),
    ("decoupled decay", "AdamW", {}),
    ("the formula without weight decay", "", {"weight_decay": 0.0}),
    ("the formula without bias correction", "", {"no_bias_correction": True}),
    ("the formula with eps added before the bias correction", "", {"eps_is_corrected_too": True}),
    ("the formula without nesterov", "", {"nesterov": False}),
    ("the formula with nesterov", "", {"nesterov": True}),
    ("the formula without dampening", "", {"dampening": 0.0}),
    ("the formula without amsgrad", "", {"amsgrad": False}),
    ("the formula with the opposite sign of the gradient", "", {"_flip": True}),
)


def _explained(seen: FormulaCheck, item: Deviation) -> str:
    """What the update is instead of its formula; "" where nothing here gives it."""
    assert seen.formula is not None
    batch = Batch([item.parameter], is_whole=item.parameter.is_whole and seen.formula.whole)
    for words, name, changed in _OTHERWISE:
        settings = changed
        if (name and name == seen.formula.name) or (name and seen.formula.name not in ("Adam", "AdamW")):
            continue
        declared = {**seen.update.settings[item.parameter.group], **seen.variant}
        if "_flip" in settings:
            settings = {"maximize": not declared.get("maximize", False)}
        if not name and all((declared.get(key) or False) == value for key, value in settings.items()):
            continue  # it is the formula as it is
        inputs = seen._inputs(batch, {**seen.variant, **settings})
        if inputs is None:
            continue
        with np.errstate(all="ignore"):
            outputs = (FORMULAS[name] if name else seen.formula).compute(inputs)
        if item.what in outputs and not compared_with(batch, item.what, outputs[item.what])[0]:
            return words
    return ""


def _why_none(seen: FormulaCheck) -> str:
    if not any(item.gradient is not None for item in seen.update.parameters):
        return "no parameter has a gradient"
    kept = {name for item in seen.update.parameters for name in item.state_after}
    if seen.formula is not None and seen.update.is_own and kept.isdisjoint(seen.formula.states):
        return f"{seen.update.optimizer} does not keep the states of {seen.formula.name} under its names"
    if seen.formula is not None and seen.formula.whole and seen.not_compared:
        return f"{seen.formula.name} takes sums over the whole parameter, and only samples of elements are here"
    return "no values of parameters, gradients and states that belong together are here"


class MomentsFormula(Law[FormulaCheck]):
    """The states after the step."""

    name = "moments-formula"
    sentence = "Moments are made of the moments before the step and of this parameter's own gradient."
    source = UpdateFormula.source
    tolerance = UpdateFormula.tolerance

    def check(self, seen: FormulaCheck) -> Checked:
        """Compare the states of an update."""
        if seen.reason:
            return Unchecked(seen.reason)
        findings = []
        for item in seen.deviations:
            if item.what != PARAMETER:
                other = _gradient_behind(seen, item)
                more = f"; it is made of the gradient of {other}" if other else ""
                if not other and (explanation := _explained(seen, item)):
                    more = f"; it is what {explanation} gives"
                    if _is_decay(explanation):
                        continue  # said by the law on decay
                message = (
                    f"{item.what} has an element {item.tested:.6g} after the step where its gradient and "
                    f"{item.what} before give {item.right:.6g}{more}"
                )
                findings.append(self.found(item.parameter.name, message, item.size))
        if not findings and not any(count for what, count in seen.compared.items() if what != PARAMETER):
            return (
                Unchecked("the optimizer keeps no moments", is_moot=True)
                if seen.compared
                else Unchecked(_why_none(seen))
            )
        return findings


def _gradient_behind(seen: FormulaCheck, item: Deviation) -> str:
    """The parameter of the same shape whose gradient explains the moment; "" for none."""
    own = item.parameter
    for other in seen.update.parameters:
        same = other.gradient is not None and other.shape == own.shape and other.gradient.size == own.before.size
        if same and other.name != own.name:
            from dataclasses import replace

            batch = Batch([replace(own, gradient=other.gradient)], is_whole=own.is_whole)
            inputs = seen._inputs(batch, seen.variant)
            if inputs is not None and seen.formula is not None:
                outputs = seen.formula.compute(inputs)
                if item.what in outputs and not compared_with(batch, item.what, outputs[item.what])[0]:
                    return other.name
    return ""


def _is_decay(explanation: str) -> bool:
    return "decay" in explanation


class DecayAsDeclared(Law[FormulaCheck]):
    """Coupled and decoupled weight decay."""

    name = "decay-as-declared"
    sentence = (
        "Weight decay is added to the gradient (SGD, Adam) or taken from the parameter (AdamW), as the class says."
    )
    source = "Loshchilov and Hutter, arXiv:1711.05101, algorithm 2"
    tolerance = UpdateFormula.tolerance

    def check(self, seen: FormulaCheck) -> Checked:
        """Look whether another treatment of decay explains what differs."""
        if seen.reason:
            return Unchecked(seen.reason)
        if not any(group.get("weight_decay") for group in seen.update.settings) and not seen.deviations:
            return Unchecked("there is no weight decay", is_moot=True)
        if not seen.compared.get(PARAMETER):
            return Unchecked(_why_none(seen))
        findings: dict[str, Finding] = {}
        for item in seen.deviations:
            name = item.parameter.name
            if name not in findings and _is_decay(explanation := _explained(seen, item)):
                message = f"{item.what} changes as {explanation} changes it, and the class is {seen.update.optimizer}"
                findings[name] = self.found(name, message, item.size)
        return list(findings.values())


class StepCounter(Law[Update]):
    """Counters of steps."""

    name = "step-counter"
    sentence = "The counter of each parameter that has a gradient advances by one in a step."
    source = "Kingma and Ba, arXiv:1412.6980, algorithm 1 (t <- t + 1); torch.optim"

    def check(self, seen: Update) -> Checked:
        """Compare counters before and after."""
        findings, checked = [], 0
        for item in seen.parameters:
            after = item.state_after.get(COUNTER)
            if after is None or after.size != 1:
                continue
            checked += 1
            before = item.state_before.get(COUNTER)
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

    def check(self, seen: Update) -> Checked:
        """Look for equal addresses."""
        owners: dict[int, tuple[str, str]] = {}
        findings, checked = [], 0
        for item in seen.parameters:
            if item.place_after.address:
                other = owners.setdefault(item.place_after.address, (item.name, "the parameter"))
                if other[0] != item.name:
                    findings.append(self.found(item.name, f"it is the same memory as the parameter {other[0]}"))
        for item in seen.parameters:
            for name, place in item.state_places.items():
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

    def check(self, seen: Update) -> Checked:
        """Compare places before and after, and dtypes with those that the step before has left."""
        findings = []
        left = self._left.get(seen.optimizer, {})
        self._left[seen.optimizer] = {item.name: item.place_after.dtype for item in seen.parameters}
        for item in seen.parameters:
            before, after = item.place_before, item.place_after
            if (dtype := left.get(item.name, before.dtype)) != before.dtype:
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
        return findings if seen.parameters else Unchecked("the optimizer has no parameters")


class SomethingUpdated(Law[Update]):
    """An optimizer without gradients."""

    name = "something-updated"
    sentence = "A step gets a gradient of at least one of its parameters, and makes none of them NaN or Inf."
    source = "torch.optim passes over parameters whose gradient is None, without a word; torch.amp.GradScaler.step"

    def check(self, seen: Update) -> Checked:
        """Look for a gradient."""
        if not seen.is_complete:
            return Unchecked("not all parameters of the optimizer are here")
        if not seen.parameters:
            return Unchecked("this process has no parameters of the optimizer")
        broken = [
            item.name
            for item in seen.parameters
            if not np.all(np.isfinite(item.after)) and np.all(np.isfinite(item.before))
        ]
        if broken:
            return [self.found(broken[0], "the step makes it NaN or Inf", None, broken[1:])]
        if any(item.gradient is not None for item in seen.parameters):
            return []
        first = seen.parameters[0].name
        names = [item.name for item in seen.parameters[1:]]
        return [
            self.found(
                first,
                f"none of the {len(names) + 1} parameters of {seen.optimizer} has a gradient: the "
                "step updates nothing (does it hold the parameters that the model uses?)",
                None,
                names,
            )
        ]


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

    def check(self, seen: Update) -> Checked:
        """Look at learning rate, decay and factors of moments."""
        findings, checked = [], 0
        is_idle = bool(seen.settings) and all(group.get("lr") == 0 for group in seen.settings)
        self._idle[seen.optimizer] = self._idle.get(seen.optimizer, 0) + 1 if is_idle else 0
        if self._idle[seen.optimizer] == _IDLE:
            findings.append(self.found("lr", f"it is 0 in all groups, in {_IDLE} steps: nothing is learned"))
        for number, group in enumerate(seen.settings):
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
    _PATIENCE = 3

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], int] = {}

    def check(self, seen: FormulaCheck) -> Checked:
        """The share of elements that stay although their gradient is not zero."""
        by_dtype: dict[str, list[tuple[float, int, UpdatedParameter]]] = {}
        for item in seen.update.parameters:
            if item.gradient is None or item.gradient.size != item.before.size or item.after.size != item.before.size:
                continue
            settings = seen.update.settings[item.group]
            asked = (item.gradient != 0) & np.isfinite(item.gradient) & (item.before != 0)
            if not np.any(asked) or settings.get("lr") == 0:
                continue
            lost = float(np.mean(item.after[asked] == item.before[asked]))
            by_dtype.setdefault(item.place_before.dtype, []).append((lost, item.full_size or item.before.size, item))
        if not by_dtype:
            return Unchecked("no values of parameters and gradients are here")
        findings = []
        for dtype, shares in by_dtype.items():
            total = sum(size for _, size, _ in shares)
            share = sum(lost * size for lost, size, _ in shares) / total
            key = seen.update.optimizer, dtype
            self._times[key] = self._times.get(key, 0) + 1 if share > Share.LOST_UPDATES else 0
            if self._times[key] == self._PATIENCE:
                worst = sorted(shares, key=lambda entry: -entry[0] * entry[1])
                names = [item.name for lost, _, item in worst if lost > Share.LOST_UPDATES]
                count = self._PATIENCE
                message = (
                    f"{100 * share:.0f} % of the elements of {dtype} parameters stay as they are, "
                    f"in {count} steps, although their gradients are not zero: the update is lost in rounding "
                    "(it has no master weights?)"
                )
                findings.append(self.found(names[0] if names else worst[0][2].name, message, None, names[1:]))
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
        """The states of all optimizers were replaced on purpose, or other elements of those of one are looked at."""
        if optimizer:
            self._left.pop(optimizer, None)
        else:
            self._left.clear()

    def loaded(self, optimizer: str) -> None:
        """The states of an optimizer were replaced on purpose."""
        self._loaded.add(optimizer)

    def _is_made_anew(self, seen: Update) -> bool:
        """Whether optimizers before this one have taken their first step alone, each from where the last one ended."""
        nothing: tuple[Mapping[str, Array], int, Array] = {}, -1, np.empty(0)
        left = [(item, *self._left.get(self._newest, {}).get(item.name, nothing)) for item in seen.parameters]
        is_next = bool(left) and all(
            number == 0 and any(map(np.any, state.values())) and item.before.size and np.array_equal(item.before, after)
            for item, state, number, after in left
        )
        if is_next:
            self._left.pop(self._newest)
        self._newest, self._anew = seen.optimizer, self._anew + 1 if is_next else 0
        return self._anew == _NEW

    def check(self, seen: Update) -> Checked:
        """Compare states before the step with those that the last one left."""
        is_anew = seen.number == 0 and self._is_made_anew(seen)
        is_loaded = seen.optimizer in self._loaded
        self._loaded.discard(seen.optimizer)
        before = self._left.get(seen.optimizer)
        self._left[seen.optimizer] = {
            item.name: (item.state_after, seen.number, item.after) for item in seen.parameters
        }
        if not any(item.state_before or item.state_after for item in seen.parameters) and not any(
            state for state, *_ in (before or {}).values()
        ):
            return Unchecked("the optimizer keeps no state", is_moot=True)
        if is_anew:
            first, *others = [item.name for item in seen.parameters]
            message = f"it is in a new optimizer in each of {_NEW + 1} steps: no moment is older than one step"
            return [self.found(first, message, None, others)]
        if before is None:
            return Unchecked("one step was seen")
        findings, checked = [], 0
        for item in seen.parameters:
            left, number, parameter = before.get(item.name, ({}, -1, item.before))
            if number != seen.number - 1 or (item.state_after.keys() and item.gradient is None):
                continue
            if not np.array_equal(item.before, parameter, equal_nan=True):
                continue  # the parameter was put anew, as Lookahead does, and its state may be with it
            if is_loaded:
                was, at = (np.max(state.get(COUNTER, 0.0), initial=0.0) for state in (left, item.state_before))
                if 0 < at < was:
                    message = f"its state is that of step {at:g} again, and the parameter that of step {was:g}"
                    findings.append(self.found(item.name, message))
                continue
            for name, value in left.items():
                now = item.state_before.get(name)
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


def summed_up(findings: Sequence[Finding]) -> Iterator[Finding]:
    """One finding for those of one law with the same words, the worst first, with the other names."""
    by_kind: dict[tuple[str, str], list[Finding]] = {}
    for item in findings:
        by_kind.setdefault((item.law, _kind_of(item.message)), []).append(item)
    for items in by_kind.values():
        worst = max(items, key=lambda item: -1.0 if item.size is None else item.size)
        names = [item.parameter for item in items if item is not worst]
        yield Finding(worst.law, worst.parameter, worst.message, worst.size, (*worst.others, *names))


def _kind_of(message: str) -> str:
    return " ".join(word for word in message.split() if not any(mark in word for mark in "0123456789."))[:60]
