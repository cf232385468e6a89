"""A difference of two manifests: its values in words, and whether it explains what differs between two runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msprobe_collector.dump_format.values import first_of, printable
from pytest_msprobe.answers.finding import ArgumentDifference
from pytest_msprobe.answers.words import listed_numbers

#: What differs where a model trains in one run and is in eval in the other.
MODE = "mode"


@dataclass(frozen=True, slots=True)
class ManifestDifference:
    """One thing in which two runs differ.

    Attributes:
        section: `step`, `ranks`, `optimizer`, `model`, `precision`, `random`, `switches`, `environment`, `versions`,
            `device`, `batch`, `initial state` or `script`.
        what: of it differs.
        target, golden: the two values as text; "" where they say nothing.
        sentence: the difference in one line.
        likelihood: how likely it explains other numbers, from 0 to 1, for the order.
        names: of the parameters, layers or generators that are meant; () where it is one thing.
    """

    section: str
    what: str
    target: str
    golden: str
    sentence: str
    likelihood: float
    names: tuple[str, ...] = ()

    @property
    def argument(self) -> ArgumentDifference:
        """The difference as findings hold it: of several parameters by the first of them."""
        is_of_one = self.section == "model" and self.what in ("shape", "dtype") and self.names
        return ArgumentDifference(self.names[0] if is_of_one else self.what, self.target, self.golden)


def of_other_step(target: str, golden: str) -> ManifestDifference:
    """The difference of two dumps that are of the steps of these numbers."""
    sentence = f"step {target}, golden step {golden}: these are not the same step"
    return ManifestDifference("step", "step", target, golden, sentence, 1.0)


def difference_of(
    section: str,
    words: str,
    target: object,
    golden: object,
    likelihood: float,
    *,
    what: str = "",
    names: Sequence[str] = (),
) -> ManifestDifference:
    """The difference with the sentence `WORDS TARGET, golden GOLDEN`; all texts are printable."""
    sentence = f"{words} {target}, golden {golden}"
    what = what or words.removesuffix(":")
    return ManifestDifference(section, what, str(target), str(golden), sentence, likelihood, tuple(names))


_MOST_CHARACTERS, _MOST_ITEMS, _MOST_NAMES = 60, 8, 3


def shown(value: object) -> str:
    """A value in one line of at most about 60 characters; numbers as Python writes them."""
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        if abs(value) < 10**20:
            return str(value)
        return f"{value:.3g}" if abs(value) < 10**300 else "a huge number"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        items = list(map(shown, value[:_MOST_ITEMS]))
        if len(value) > _MOST_ITEMS:
            items.append(f"... {len(value) - _MOST_ITEMS} more")
        return cut(f"[{', '.join(items)}]", 120)
    if isinstance(value, dict):
        items = [f"{shown(key)}: {shown(item)}" for key, item in list(value.items())[:_MOST_ITEMS]]
        return cut(f"{{{', '.join(items)}}}", 120)
    return type(value).__name__


def shown_of(values: Mapping[str, object], key: str, otherwise: str) -> str:
    """The value of a key as `shown` has it, `otherwise` where there is none."""
    return shown(values[key]) if key in values else otherwise


def as_mapping(value: object) -> Mapping[str, object]:
    """Return a value that should be a mapping; an empty one in place of anything else, as a file may hold."""
    if not isinstance(value, dict):
        return {}
    return {str(key): item for key, item in value.items()}


def cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    """`text` with escapes for what is not printable, and cut where it is longer than `most` characters."""
    short = printable(text[: most + 1])
    return short if len(text) <= most else f"{short[: most - 3]}..."


def names(listed: Iterable[str], most: int = _MOST_NAMES) -> str:
    """`a, b, c and 4 more`."""
    return first_of(list(map(cut, listed)), most)


def switched(value: object) -> str:
    """A switch: on, off, or its value."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return shown(value) or "not set"


def numbers(listed: Iterable[int]) -> str:
    """`0-3, 7`."""
    return listed_numbers(listed, "-")


def last_name(kind: str) -> str:
    """`AdamW` of `torch.optim.adamw.AdamW`."""
    return cut(kind.rpartition(".")[2]) or "unknown"


def together(texts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


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
