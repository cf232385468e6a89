"""The results of all runs of one direction of an API call, equal ones once, and the verdict on them.

Where they differ: in how many runs, which elements and bits, and whether that is documented.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64, xxh3_128_digest, xxh32_intdigest

from msprobe_collector.dump_format import dtype_of_array
from pytest_msprobe.apis.fact_table import Kind
from pytest_msprobe.cases.call_run import CapturedError
from pytest_msprobe.engines.protocol import OutputValue, Unsupported
from pytest_msprobe.numerics.dtypes import kind_of, unit_roundoff
from pytest_msprobe.numerics.expected import Relative, Roundoffs
from pytest_msprobe.numerics.pair import relative
from pytest_msprobe.numerics.patterns import Pattern, describe_region, find_pattern
from pytest_msprobe.verdicts import OutputRow, Status, Verdict

#: Kinds of patterns that say more than which bits have changed.
_TELLING = ("not finite", "zero", "swapped", "copied", "repeated", "shifted", "lookalike", "transposed")


@dataclass(frozen=True, slots=True)
class BitDifference:
    """What differs between two results.

    Attributes:
        elements: how many differ.
        bits: how many bits of an element differ, at most.
        size: largest difference over the largest finite magnitude of the second result; infinity where one is finite
            and the other is not, NaN for what is no number.
        pattern: a phrase: ``bit 30 of one element at [0, 2]``, ``1 to 5 bits each, row 3``.
    """

    elements: int
    bits: int
    size: float
    pattern: str


def content_of(value: object, *, by_columns: bool = False) -> tuple[object, ...]:
    """What two outputs have in common only if they are equal to the bit.

    dtype, shape and bytes of an array, of a large one the 128 bits of XXH3 in place of its bytes: that reads each
    result once and keeps none, and two that differ have the same with a chance of 2**-128. Type and text of what is no
    array. Arrays are read in row-major order, or `by_columns`, which costs less where they stand so in memory: only
    what was read in the same order compares.
    """
    if type(value) is not np.ndarray:
        return type(value), repr(value)
    read = value.T if by_columns else value
    # Up to this size a copy of the bytes costs less than their hash.
    if value.nbytes <= 1 << 12:
        return value.dtype, value.shape, read.tobytes()
    return value.dtype, value.shape, xxh3_128_digest(bytes_of(read).data)


def stands_by_columns(value: object) -> bool:
    """Whether `value` is an array in column-major order, as gradients of weights often are."""
    return type(value) is np.ndarray and value.flags.f_contiguous and not value.flags.c_contiguous


def bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of an array in C order, in one dimension; as bytes, since bfloat16 has no buffer format of its own."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def describe_bits(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> BitDifference:
    """How `tested` differs from `reference`, an array of the same dtype and shape with other bytes."""
    off = (bytes_of(tested) ^ bytes_of(reference)).reshape(tested.size, -1)  # a row per element
    is_off = off.any(axis=1)
    places = np.flatnonzero(is_off)
    changed = np.unpackbits(off[places[: 1 << 20]], axis=1, bitorder="little")
    where = describe_region(is_off.reshape(reference.shape)) or "everywhere"
    what = find_pattern(tested, reference) if tested.size > 1 else Pattern()
    pattern = _bits_phrase(changed, is_one=places.size == 1)
    pattern += f" of {where}" if places.size == 1 else f", {where}"
    if what.kind in _TELLING:
        pattern += f" ({what.words})"
    return BitDifference(int(places.size), int(changed.sum(axis=1).max()), _size(tested, reference), pattern)


def is_reordering(difference: BitDifference, dtype: np.dtype[Any]) -> bool:
    """Whether a difference is no larger than what another order of additions leaves.

    That is 1024 unit roundoffs of the largest element, for half dtypes, whose sums are kept in more bits, at most 2^-8
    of it, and never less than four roundoffs. A changed high bit of an element is more.
    """
    if kind_of(dtype) != "float":
        return False
    unit = unit_roundoff(dtype)
    return difference.size <= max(Roundoffs.SHORTEST_SUM * unit, min(Roundoffs.OTHER_ORDER * unit, Relative.HALF_SUMS))


def _bits_phrase(changed: npt.NDArray[np.uint8], *, is_one: bool) -> str:
    """Which bits, counted from the lowest one: ``bit 30``, ``3 bits``, ``1 to 5 bits each``."""
    counts = changed.sum(axis=1)
    positions = np.flatnonzero(changed.any(axis=0))
    if positions.size == 1:
        return f"bit {positions[0]}"
    least, most = int(counts.min()), int(counts.max())
    bits = f"{least} to {most} bits"
    if least == most:
        bits = "1 bit" if most == 1 else f"{most} bits"
    return bits if is_one else f"{bits} each"


def _size(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    if kind_of(reference.dtype) != "float" or reference.dtype.kind == "c":
        return math.nan
    with np.errstate(all="ignore"):
        actual, right = tested.astype(np.float64), reference.astype(np.float64)
        finite = np.isfinite(right)
        if (finite != np.isfinite(actual)).any():
            return math.inf
        largest = float(np.abs(right[finite]).max(initial=0.0))
        off = float(np.abs(actual[finite] - right[finite]).max(initial=0.0))
    return relative(off, largest)


#: The outputs of a run; or why there are none.
Outcome = tuple[OutputValue, ...] | CapturedError | Unsupported

#: Different results that are kept, so that they can be described; more are only counted.
_KEPT = 4


@dataclass(slots=True)
class DistinctResult:
    """One of the different results.

    Attributes:
        outcome: what the runs returned.
        content: what only an equal outcome has, output by output.
        runs: their numbers, from 1 on.
    """

    outcome: Outcome
    content: tuple[object, ...]
    runs: list[int]


@dataclass(slots=True)
class Runs:
    """What the runs of one direction gave.

    Attributes:
        labels: of the outputs of the first run.
        results: the different ones, in order of appearance, `_KEPT` at most.
        others: numbers of the runs that gave none of these.
        overwritten: numbers of the runs that wrote into memory beside their own.
    """

    labels: list[str] = field(default_factory=list)
    results: list[DistinctResult] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    overwritten: list[int] = field(default_factory=list)
    _by_columns: list[bool] = field(default_factory=list, init=False)

    def add(self, run: int, outcome: Outcome) -> None:
        """Take the outcome of a run; its arrays are kept when no earlier one was the same."""
        content = self._content(outcome)
        for result in self.results:
            if result.content == content:
                result.runs.append(run)
                return
        if len(self.results) < _KEPT:
            self.results.append(DistinctResult(outcome, content, [run]))
        else:
            self.others.append(run)

    @property
    def changed(self) -> list[int]:
        """Numbers of the runs whose result is another one by now: something wrote into its memory."""
        return [result.runs[0] for result in self.results if self._content(result.outcome) != result.content]

    @property
    def usual(self) -> DistinctResult:
        """The result of most runs, the first one among equals."""
        return max(self.results, key=lambda result: len(result.runs))

    def _content(self, outcome: Outcome) -> tuple[object, ...]:
        """What only an equal outcome has: each output is read in the order in which that of the first run stands."""
        if not isinstance(outcome, tuple):
            return type(outcome), failure_text(outcome)
        if not self._by_columns:
            self._by_columns = [stands_by_columns(value) for value in outcome]
        orders = chain(self._by_columns, repeat(False))  # a run may return more than the first one
        return tuple([content_of(value, by_columns=by_columns) for value, by_columns in zip(outcome, orders)])


def failure_text(outcome: Outcome) -> str:
    """What a run raised; "" for one that has a result."""
    if isinstance(outcome, tuple):
        return ""
    return outcome.text if isinstance(outcome, CapturedError) else str(outcome)


def content_digest(labels: Sequence[str], outputs: Sequence[OutputValue]) -> tuple[str, list[dict[str, Any]]]:
    """(16 hexadecimal digits that are equal for equal outputs, their parts with digests of their own).

    The second value is in builtin types: label, dtype, shape and blocks of each output.
    """
    whole = xxh3_64()
    parts = []
    for label, value in zip(labels, outputs):
        array = value if isinstance(value, np.ndarray) else None
        shape = [] if array is None else list(array.shape)
        held = memoryview(repr(value).encode()) if array is None else bytes_of(array).data
        # Parts of an output that have a digest of their own.
        length = 1 if array is None else max(1, -(-array.size // 32))
        step = len(held) if array is None else length * array.itemsize
        blocks = [xxh32_intdigest(held[start : start + step]) for start in range(0, len(held), step)]
        whole.update(f"{label} {type(value).__name__ if array is None else array.dtype} {shape}".encode())
        whole.update(held)
        parts.append({"label": label, "shape": shape, "length": length, "blocks": blocks})
    return whole.hexdigest(), parts


_SHOWN_RUNS = 4
_DOCUMENTED: dict[Kind, str] = {
    "sums": "results differ between runs as documented: the order of additions is not fixed",
    "writes": "results differ between runs as documented: any of several values may be written last",
}


def judge_runs(runs: Runs, count: int, device: str, *, documented: Kind | None = None, drawn: str = "") -> Verdict:
    """The verdict on `count` runs of one direction on `device`.

    Args:
        runs: what they gave.
        count: how many were asked for.
        device: label of the engine.
        documented: why its results may differ between runs; None where they may not. Of `sums`, only differences as
            small as those of another order of additions are taken for documented ones.
        drawn: the arguments that were drawn at random, "" for none: an API that refuses these is skipped.
    """
    usual = runs.usual
    if isinstance(usual.outcome, Unsupported) and len(runs.results) == 1:
        return Verdict("skip", f"device: {usual.outcome}")
    if len(runs.results) == 1 and (text := failure_text(usual.outcome)):
        if drawn:
            return Verdict("skip", f"the device refuses the inputs, which were drawn at random ({drawn}): {text}")
        return Verdict("error", f"device ({device}): {text}", device=device)
    rows = tuple(_rows(runs, count, documented))
    problems = [*_problems(runs, count)]
    wrong = [row for row in rows if row.status == "error"]
    lines = [*problems, *(f"{row.label} {row.tested_dtype} {row.shape}: {row.message}" for row in rows if row.message)]
    if problems or wrong:
        message = "; ".join(problems)
        return Verdict("error", message, rows, explanation="\n".join(lines), device=device, attachment={"digest": ""})
    if documented and any(row.status == "skip" for row in rows):
        return Verdict("skip", _DOCUMENTED[documented], rows, device=device, attachment={"digest": ""})
    assert isinstance(usual.outcome, tuple)  # all runs gave this one
    digest, parts = content_digest(runs.labels, usual.outcome)
    return Verdict("pass", outputs=rows, device=device, attachment={"digest": digest, "outputs": parts})


def _problems(runs: Runs, count: int) -> list[str]:
    """What no single output shows: runs that raised or returned something else, memory that is not theirs."""
    usual = runs.usual
    problems = []
    for result in runs.results:
        text = failure_text(result.outcome)
        if text:
            problems.append(f"{_share(result.runs, count)} raised: {text}")
        elif _count(result.outcome) != _count(usual.outcome):
            problems.append(f"{_share(result.runs, count)} returned {_count(result.outcome)} outputs")
    if runs.others:
        problems.append(f"there are more than {len(runs.results)} different results in {count} runs")
    if changed := runs.changed:
        problems.append(f"the result of {_share(changed, count)} was written to afterwards")
    if runs.overwritten:
        problems.append(f"{_share(runs.overwritten, count)} wrote into memory beside its own tensors")
    return problems


def _rows(runs: Runs, count: int, documented: Kind | None) -> list[OutputRow]:
    usual = runs.usual
    if not isinstance(usual.outcome, tuple):
        return []
    complete = [(result, result.outcome) for result in runs.results if isinstance(result.outcome, tuple)]
    same_length = [(result, outputs) for result, outputs in complete if len(outputs) == len(usual.outcome)]
    rows = []
    for place, (label, value) in enumerate(zip(runs.labels, usual.outcome)):
        others = [(result, out[place]) for result, out in same_length if result.content[place] != usual.content[place]]
        rows.append(_row(label, value, others, count, documented))
    return rows


def _row(
    label: str,
    value: OutputValue,
    others: Sequence[tuple[DistinctResult, OutputValue]],
    count: int,
    documented: Kind | None,
) -> OutputRow:
    """The row of one output: the usual `value`, and what `others` gave in its place."""
    dtype, shape = _form(value)
    if not others:
        return OutputRow(label, "", dtype, shape, "pass", figures={"results": 1.0})
    share = _share(sorted(run for result, _ in others for run in result.runs), count)
    figures: dict[str, float | None] = {"results": 1.0 + len(others)}
    arrays = [other for _, other in others if isinstance(other, np.ndarray) and _form(other) == (dtype, shape)]
    if not isinstance(value, np.ndarray) or len(arrays) < len(others):
        shown = ", ".join(_shown(other) for _, other in others)
        message = f"{share} differ: {shown} in place of {dtype} {shape}"
        return OutputRow(label, "", dtype, shape, "error", message, figures=figures)
    differences = [describe_bits(other, value) for other in arrays]
    worst = max(differences, key=lambda difference: (difference.size, difference.elements))
    if documented == "sums":
        is_documented = all(is_reordering(difference, value.dtype) for difference in differences)
    else:
        is_documented = documented is not None and worst.size != np.inf
    figures |= {"elements": float(worst.elements), "bits": float(worst.bits)}
    message = f"{share} differ: {worst.pattern}"
    status: Status = "skip" if is_documented else "error"
    return OutputRow(label, "", dtype, shape, status, message, figures=figures, pattern=worst.pattern)


def _share(numbers: Sequence[int], count: int) -> str:
    """`2 of 50 runs (7 and 31)`."""
    shown = ", ".join(map(str, numbers[:_SHOWN_RUNS])) + (", .." if len(numbers) > _SHOWN_RUNS else "")
    return f"{len(numbers)} of {count} runs ({shown})"


def _shown(value: OutputValue) -> str:
    return " ".join(map(str, _form(value))) if isinstance(value, np.ndarray) else repr(value)


def _count(outcome: Outcome) -> int:
    return len(outcome) if isinstance(outcome, tuple) else 0


def _form(value: Any) -> tuple[str, tuple[int, ...]]:
    if not isinstance(value, np.ndarray):
        return type(value).__name__, ()
    dtype = dtype_of_array(value.dtype)
    return dtype.name if dtype is not None else str(value.dtype), tuple(value.shape)
