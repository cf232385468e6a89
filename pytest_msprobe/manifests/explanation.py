"""Which differences of two set-ups explain what differs between the values of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pytest_msprobe.answers.finding import ArgumentDifference
from pytest_msprobe.manifests.value import MODE, ManifestDifference

#: Kinds of values that no operation of the run made.
_BEFORE = frozenset({"parameter", "batch", "unknown", "unrecorded"})
#: What two runs of one model and batch have in common; names and classes are others in a port of it.
_SHAPES = frozenset({"shape", "shape of the batch"})


@dataclass(frozen=True, slots=True)
class Effect:
    """What differs between the values of two runs, as far as a set-up may explain it.

    Attributes:
        kind: of the fault, see docs/two_runs.md.
        is_update: whether it lies in the update of an optimizer.
        is_drawn: whether an operation drew other random numbers.
        is_later: whether an update was made before its step.
        arguments: that the call has otherwise.
    """

    kind: str
    is_update: bool = False
    is_drawn: bool = False
    is_later: bool = False
    arguments: tuple[ArgumentDifference, ...] = ()


def is_of_another_model(difference: ManifestDifference) -> bool:
    """Whether two runs that differ so are of two models or batches, or of two steps."""
    return difference.section == "step" or difference.what in _SHAPES


def explains(difference: ManifestDifference, effect: Effect) -> bool:
    """Whether a difference of the set-ups makes this effect, so that no operation is to blame for it.

    What an operation computes wrongly from its own inputs no set-up explains.
    """
    if effect.kind == "born":
        return False
    if is_of_another_model(difference):
        return True
    if any(_is_passed_on(difference, argument) for argument in effect.arguments):
        return True
    if difference.section == "random":
        return effect.is_drawn or effect.kind in _BEFORE
    if difference.section == "optimizer":
        return effect.is_update or (effect.is_later and effect.kind == "parameter")
    if difference.section == "initial state":
        return effect.kind == "parameter"
    return difference.section == "batch" and effect.kind in _BEFORE - {"parameter"}


#: How calls get the mode of their layer: by one of these names, or by place.
_FLAGS = ("training", "is_training", "train")
_FLAG_OF = {"training": "True", "eval": "False"}


def _is_passed_on(difference: ManifestDifference, argument: ArgumentDifference) -> bool:
    """Whether a call gets what a setting says: two equal values, by name or of no small number; or the mode."""
    if difference.what == MODE:
        name = argument.name.rpartition(".")[2]
        flags = tuple(map(_FLAG_OF.get, (difference.target, difference.golden)))
        return (name in _FLAGS or name.isdecimal()) and flags == (argument.target, argument.golden)
    if not difference.target or (difference.target, difference.golden) != (argument.target, argument.golden):
        return False
    if argument.name.rpartition(".")[2] == difference.what:
        return True
    with suppress(ValueError):
        return not (float(difference.target).is_integer() and float(difference.golden).is_integer())
    return False


def explanations(differences: Sequence[ManifestDifference], effects: Sequence[Effect]) -> list[ManifestDifference]:
    """The differences that explain an effect: what explains the first one first, else the most likely first.

    Args:
        differences: the most likely first.
        effects: in the order of execution.
    """
    explaining: dict[ManifestDifference, None] = {}
    for effect in effects:
        explaining |= dict.fromkeys(difference for difference in differences if explains(difference, effect))
    return list(explaining)
