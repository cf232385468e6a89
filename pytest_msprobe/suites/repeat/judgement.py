"""From the results of all runs to a verdict: what differs, in how many runs, and whether that is documented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from msprobe_collector.dump_format import dtype_of_array
from pytest_msprobe.apis.nondeterminism import Kind
from pytest_msprobe.engines.protocol import OutputValue, Unsupported
from pytest_msprobe.numerics.bits import describe_bits, is_reordering
from pytest_msprobe.suites.repeat.runs import Outcome, Result, Runs, content_digest, failure_text
from pytest_msprobe.verdicts import OutputRow, Verdict

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
    found = []
    for result in runs.results:
        text = failure_text(result.outcome)
        if text:
            found.append(f"{_share(result.runs, count)} raised: {text}")
        elif _count(result.outcome) != _count(usual.outcome):
            found.append(f"{_share(result.runs, count)} returned {_count(result.outcome)} outputs")
    if runs.others:
        found.append(f"there are more than {len(runs.results)} different results in {count} runs")
    if changed := runs.changed:
        found.append(f"the result of {_share(changed, count)} was written to afterwards")
    if runs.overwritten:
        found.append(f"{_share(runs.overwritten, count)} wrote into memory beside its own tensors")
    return found


def _rows(runs: Runs, count: int, documented: Kind | None) -> list[OutputRow]:
    usual = runs.usual
    if not isinstance(usual.outcome, tuple):
        return []
    same_length = [one for one in runs.results if one is not usual and _count(one.outcome) == len(usual.outcome)]
    rows = []
    for place, (label, value) in enumerate(zip(runs.labels, usual.outcome)):
        others = [one for one in same_length if one.content[place] != usual.content[place]]
        rows.append(_row(place, label, value, others, count, documented))
    return rows


def _row(
    place: int, label: str, value: OutputValue, others: Sequence[Result], count: int, documented: Kind | None
) -> OutputRow:
    found = [(result, _value(result, place)) for result in others]
    dtype, shape = _form(value)
    if not found:
        return OutputRow(label, "", dtype, shape, "pass", figures={"results": 1.0})
    share = _share(sorted(run for result, _ in found for run in result.runs), count)
    figures: dict[str, float | None] = {"results": 1.0 + len(found)}
    arrays = [other for _, other in found if isinstance(other, np.ndarray) and _form(other) == (dtype, shape)]
    if not isinstance(value, np.ndarray) or len(arrays) < len(found):
        shown = [f"{_form(other)[0]} {_form(other)[1]}" if _is_array(other) else repr(other) for _, other in found]
        message = f"{share} differ: {', '.join(shown)} in place of {dtype} {shape}"
        return OutputRow(label, "", dtype, shape, "error", message, figures=figures)
    differences = [describe_bits(other, value) for other in arrays]
    worst = max(differences, key=lambda one: (one.size, one.elements))
    is_documented = documented is not None and all(
        is_reordering(one, value.dtype) if documented == "sums" else one.size != np.inf for one in differences
    )
    figures |= {"elements": float(worst.elements), "bits": float(worst.bits)}
    message = f"{share} differ: {worst.pattern}"
    status = "skip" if is_documented else "error"
    return OutputRow(label, "", dtype, shape, status, message, figures=figures, pattern=worst.pattern)  # type: ignore[arg-type]


def _share(numbers: Sequence[int], count: int) -> str:
    """`2 of 50 runs (7 and 31)`."""
    shown = ", ".join(map(str, numbers[:_SHOWN_RUNS])) + (", .." if len(numbers) > _SHOWN_RUNS else "")
    return f"{len(numbers)} of {count} runs ({shown})"


def _count(outcome: Outcome) -> int:
    return len(outcome) if isinstance(outcome, tuple) else 0


def _value(result: Result, place: int) -> OutputValue:
    assert isinstance(result.outcome, tuple)  # its outputs were counted
    return result.outcome[place]


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def _form(value: Any) -> tuple[str, tuple[int, ...]]:
    if not isinstance(value, np.ndarray):
        return type(value).__name__, ()
    dtype = dtype_of_array(value.dtype)
    return dtype.name if dtype is not None else str(value.dtype), tuple(value.shape)
