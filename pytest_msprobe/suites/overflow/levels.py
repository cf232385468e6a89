"""What one record does with NaN and Inf, seen on its own: lets them pass, swallows them, or makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_msprobe.apis.unwritten import UnwrittenMemory
from pytest_msprobe.suites.overflow.finiteness import Finiteness, combined
from pytest_msprobe.suites.overflow.record_values import ObservedValue, RecordValues


class Conduct(Enum):
    """What a record does, before the records around it are looked at."""

    CLEAN = "nothing is wrong"
    ABSORBS = "bad inputs, finite outputs"
    PASSES_ON = "bad inputs, bad outputs"
    MAKES = "finite inputs, bad outputs"
    MAKES_NAN = "inputs hold Inf only, outputs NaN: inf - inf, inf / inf, 0 * inf"
    IS_TOLD = "bad only through a number that the script passed, such as -inf for a mask"
    HAS_NO_INPUTS = "bad outputs, and the record does not tell what went in"
    HOLDS_BUFFERS = "bad only in memory that was not written yet"
    IS_UNKNOWN = "neither data nor statistics of the outputs"


@dataclass(frozen=True, slots=True)
class Observation:
    """One record, seen on its own.

    Attributes:
        conduct: what it does.
        inputs, outputs: what is not finite, of all inputs (for a backward those of its forward too) and all outputs.
        bad: its own values that are not finite.
    """

    conduct: Conduct
    inputs: Finiteness
    outputs: Finiteness
    bad: tuple[ObservedValue, ...]


def observe(values: RecordValues, saved: Sequence[ObservedValue], rule: UnwrittenMemory) -> Observation:
    """What a record with these `values` does.

    Args:
        values: of the record.
        saved: values of its forward, for a backward: gradients are computed from them as well.
        rule: which of its values are buffers.
    """
    counted = [value for value in values.inputs if not rule.covers(value.path)]
    ins = [*counted, *saved]
    bad_ins = [value for value in ins if value.finiteness.is_bad]
    bad_outs = [value for value in values.outputs if value.finiteness.is_bad]
    inputs = combined([value.finiteness for value in ins])
    outputs = combined([value.finiteness for value in values.outputs])
    if not bad_outs:
        is_unknown = not values.has_outputs or any(not value.finiteness.is_known for value in values.outputs)
        conduct = Conduct.IS_UNKNOWN if is_unknown else Conduct.ABSORBS if bad_ins else Conduct.CLEAN
    elif _are_buffers(rule, values, bad_ins, bad_outs):
        conduct = Conduct.HOLDS_BUFFERS
    else:
        conduct = _bad_conduct(values, bad_ins, inputs, outputs)
    return Observation(conduct, inputs, outputs, values.bad)


def _are_buffers(
    rule: UnwrittenMemory, values: RecordValues, bad_ins: Sequence[ObservedValue], bad_outs: Sequence[ObservedValue]
) -> bool:
    if bad_ins:
        return False
    if rule.outputs:
        return all(rule.covers(value.path) for value in bad_outs)
    return any(value.finiteness.is_bad for value in values.inputs)  # its buffer came back as it was


def _bad_conduct(
    values: RecordValues, bad_ins: Sequence[ObservedValue], inputs: Finiteness, outputs: Finiteness
) -> Conduct:
    if not bad_ins:
        is_told = values.has_inputs and inputs.is_known
        return Conduct.MAKES if is_told else Conduct.HAS_NO_INPUTS
    makes_nan = outputs.has_nan and not inputs.has_nan
    if makes_nan:
        return Conduct.MAKES_NAN
    if all(value.is_plain for value in bad_ins) and (inputs.has_inf or not outputs.has_inf):
        return Conduct.IS_TOLD
    return Conduct.PASSES_ON
