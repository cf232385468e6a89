"""One thing that is wrong, and what two runs hold of each other: parts of the answer of a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from operator import attrgetter
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Confidence = Literal["proved", "likely", "possible", "first difference only"]
#: The surest first.
CONFIDENCES: tuple[Confidence, ...] = ("proved", "likely", "possible", "first difference only")


class ArgumentDifference(msgspec.Struct, frozen=True):
    """An argument or a setting that the two runs have otherwise; "" on the side that does not have it."""

    name: str
    target: str = ""
    golden: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a finding is: the first record that shows it, and the layers, calls, ranks and steps that all show it."""

    record: Annotated[str, Meta(description="the first record at fault, or the first one that uses a value at fault")]
    operation: Annotated[str, Meta(description="the call; of several calls their API; else the thing that is meant")]
    calls: Annotated[int, Meta(description="how many calls are meant")] = 1
    layers: Annotated[tuple[int, ...], Meta(description="numbers of the layers, where the calls differ by these")] = ()
    numbers: Annotated[tuple[int, ...], Meta(description="numbers of the calls, where they are known")] = ()
    directions: Annotated[tuple[str, ...], Meta(description="forward, backward or both; empty where it has none")] = ()
    value: Annotated[str, Meta(description="place of the value in the record: output.0; else empty")] = ""
    names: Annotated[tuple[str, ...], Meta(description="of parameters, the first three")] = ()
    source: Annotated[str, Meta(description="line of the training script, file:line; empty if unknown")] = ""
    cell: Annotated[str, Meta(description="innermost Cell or Module; empty if unknown")] = ""
    ranks: Annotated[tuple[int, ...], Meta(description="ranks that show it, at most 16 of them; empty if unknown")] = ()
    steps: Annotated[tuple[int, ...], Meta(description="training steps that show it, at most 8; empty if unknown")] = ()


class Reach(msgspec.Struct, frozen=True):
    """What follows from the findings."""

    count: Annotated[int, Meta(description="number of records whose difference came in with their inputs")] = 0
    last: Annotated[str, Meta(description="the last of them in the order of execution; empty if unknown")] = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause: the same fault in several layers, calls, steps or ranks is one."""

    id: Annotated[str, Meta(description="node id of the first pytest item that shows it; stable between runs")] = ""
    kind: Annotated[str, Meta(description="what is wrong, in one word of the suite: see docs/two_runs.md")]
    place: Place
    confidence: Annotated[
        Confidence,
        Meta(
            description="proved: computed again, read twice or against a law, and off by more than rounding makes; "
            "likely: what is known points here, and something else is not excluded; possible: right runs have the like "
            "now and then; first difference only: nothing before it differs, and nothing shows that it is wrong"
        ),
    ] = "likely"
    figures: Annotated[
        dict[str, float | int | str],
        Meta(description="of the worst value: names are columns of the suite's tables; size is the relative error"),
    ] = {}
    pattern: Annotated[str, Meta(description="what the wrong elements have in common; empty if nothing is known")] = ""
    arguments: Annotated[
        tuple[ArgumentDifference, ...], Meta(description="arguments or settings that the runs have otherwise")
    ] = ()
    count: Annotated[int, Meta(description="number of pytest items that show it")] = 1
    detail: Annotated[str, Meta(description="what the first item prints, for people; no program reads it")] = ""
    name: Annotated[str, Meta(description="the place in words, for people")] = ""
    how: Annotated[str, Meta(description="how wrong, in a few words, for people; may be empty")] = ""

    @property
    def size(self) -> float | None:
        """Largest relative size of the error; None where it is not known."""
        value = self.figures.get("size")
        return float(value) if isinstance(value, (int, float)) else None


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer does not cover, and a way on."""

    kind: Annotated[str, Meta(description="why it is not covered, in one word")]
    what: Annotated[str, Meta(description="the record, path or thing; of several the first one")] = ""
    count: Annotated[int, Meta(description="how many are meant")] = 1
    noun: Annotated[str, Meta(description="what they are, in the plural")] = ""
    reason: Annotated[str, Meta(description="what made it so, for people; may be empty")] = ""
    text: Annotated[str, Meta(description="all of it in words, for people")] = ""


ExactKind = Literal["left", "together", "other input", "drifted", "alike", "near", "nothing"]
Farther = Literal["", "target", "golden", "both"]


class Exact(msgspec.Struct, frozen=True, kw_only=True):
    """How far both runs are from the exact run, in roundings: units of the roundoff of the coarsest dtype so far."""

    kind: Annotated[
        ExactKind,
        Meta(
            description="left: one run leaves the exact one at this record, from inputs that are near; drifted: one is "
            "many times farther off, by no one call; near: both are as near as their dtypes allow; alike: some values "
            "are far off in both; together: both leave it and agree with each other; other input: it gets what neither "
            "of them gets; nothing: no value is in all three"
        ),
    ]
    farther: Annotated[Farther, Meta(description="which run is farther off; empty where neither is")] = ""
    record: Annotated[str, Meta(description="where that is, in the target; of near the farthest")] = ""
    value: Annotated[str, Meta(description="its output, or of another input that")] = ""
    source: Annotated[str, Meta(description="line of the training script, file:line; empty if unknown")] = ""
    target: Annotated[
        float | None,
        Meta(description="roundings that the value is off, of near the most; null: not finite"),
    ] = None
    golden: Annotated[float | None, Meta(description="the same of the golden run")] = None
    target_input: Annotated[
        float | None, Meta(description="roundings that what goes in is off at most; null: not known")
    ] = None
    golden_input: Annotated[float | None, Meta(description="the same of the golden run")] = None
    target_dtype: Annotated[str, Meta(description="the coarsest dtype on the way")] = ""
    golden_dtype: Annotated[str, Meta(description="the same of the golden run")] = ""
    judged: Annotated[
        int, Meta(description="values that all three runs hold; those before the record where both leave")
    ] = 0
    basis: Annotated[str, Meta(description="tensors or statistics")] = "tensors"
    is_proved: Annotated[bool, Meta(description="whether computing the call again blames it as well")] = False
    text: Annotated[str, Meta(description="all of it in words, for people")] = ""


class NextStep(msgspec.Struct, frozen=True):
    """A command that tells more, or what to do by hand."""

    kind: Annotated[str, Meta(description="what it would tell, or what to do by hand, in one word")]
    arguments: Annotated[tuple[str, ...], Meta(description="command line, one argument each; empty: done by hand")] = ()
    subject: Annotated[str, Meta(description="what it is about: a call, a file, a step; may be empty")] = ""
    tells: Annotated[str, Meta(description="the same in words, for people")] = ""

    def __str__(self) -> str:
        """The command line as one types it."""
        return shlex.join(self.arguments)


class SourceCall(msgspec.Struct, frozen=True):
    """An API call, and the line that makes it."""

    call: Annotated[str, Meta(description="name of the call")]
    direction: Annotated[str, Meta(description="forward or backward; else empty")] = "forward"
    source: Annotated[str, Meta(description="line of the training script, file:line; empty if unknown")] = ""


class Parted(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of both runs behind which the values of one are not found in the other one."""

    target: Annotated[
        tuple[SourceCall, ...], Meta(description="in the order of execution; in the file the first and the last")
    ] = ()
    golden: Annotated[tuple[SourceCall, ...], Meta(description="likewise, of the golden run")] = ()
    target_count: Annotated[int, Meta(description="number of these calls")] = 0
    golden_count: Annotated[int, Meta(description="number of these calls")] = 0
    distance: Annotated[
        float | None, Meta(description="how far their results are apart at least, of their size; null if unknown")
    ] = None
    factor: Annotated[
        float | None, Meta(description="how many times the golden result the target's is; null where it is no factor")
    ] = None
    parameters: Annotated[
        tuple[str, ...], Meta(description="of the target, where their gradients or updates alone are not found")
    ] = ()


class SharedContent(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what the target computes the golden run holds, whatever its calls are named."""

    found: Annotated[int, Meta(description="values of the target that the golden run holds, up to rounding")] = 0
    values: Annotated[int, Meta(description="values of the target that were looked for")] = 0
    regions: Annotated[int, Meta(description="parts computed in other steps, behind which values are equal again")] = 0
    target_records: Annotated[int, Meta(description="records of the target in these parts")] = 0
    golden_records: Annotated[int, Meta(description="records of the golden run in these parts")] = 0
    parted: Annotated[Parted | None, Meta(description="where the runs part; null where they do not")] = None


def together(contents: Iterable[SharedContent]) -> SharedContent | None:
    """What several pairs of dumps hold of each other: sums, and the first place; None of no pair."""
    pairs = list(contents)
    if not pairs:
        return None
    names = ("found", "values", "regions", "target_records", "golden_records")
    sums = {name: sum(map(attrgetter(name), pairs)) for name in names}
    return SharedContent(**sums, parted=next(filter(None, map(attrgetter("parted"), pairs)), None))
