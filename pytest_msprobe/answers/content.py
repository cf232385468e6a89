"""What two runs hold of each other, as data: a part of the answer of runs with different calls."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Annotated

import msgspec
from msgspec import Meta


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
