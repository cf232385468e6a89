"""Judging the gradients of a run: one at a time, each from files that are read when they are needed.

A norm is judged by the running mean of those before it, the similarity of signs with a golden run by the step before.
The existing tool publishes the latter rule as found by experience: a problem is a first similarity below 0.97, or one
more than 0.03 below that of the step before.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Literal, NamedTuple

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.numerics.expected import Absolute
from pytest_msprobe.suites.gradients import GradientSettings
from pytest_msprobe.suites.gradients.findings import GradientResult, SignAgreement, compare_signs
from pytest_msprobe.suites.gradients.run import GradientRow, RunPair, StepSummary, read_summary


@dataclass(frozen=True, slots=True)
class RunningMean:
    """The mean of the norms so far: of all up to 100, then exponential, `0.99 mean + 0.01 norm`.

    The existing tool weighs the first norm with 0.99 from the start, so that it decides over the first hundred steps.
    Only norms above 0 and finite count: one NaN would stay for good, and zeros before training begins give no scale.
    """

    mean: float = 0.0
    count: int = 0

    def with_norm(self, norm: float) -> RunningMean:
        """The mean after one more step."""
        if not (math.isfinite(norm) and norm > 0):
            return self
        # As in the AnomalyTurbulence rule of the existing tool's monitor.
        weight = max(1 / (self.count + 1), 0.01)
        return RunningMean(self.mean + weight * (norm - self.mean), self.count + 1)


class NormHistory:
    """The means of one rank before each of its steps. Reads each summary once when steps are asked for in order."""

    def __init__(self, steps: Sequence[int], summary: Callable[[int], StepSummary | None]) -> None:
        """Start a history over `steps`; `summary` gives that of a step, None when it cannot be read."""
        self._steps = steps
        self._summary = summary
        self._read = 0
        self._means: dict[str, RunningMean] = {}
        self._before: dict[tuple[int, str], RunningMean] = {}

    def before(self, step: int, name: str) -> RunningMean:
        """The mean of the norms of the parameter `name` over the steps before `step`."""
        while self._read < len(self._steps) and self._steps[self._read] <= step:
            self._take(self._steps[self._read])
            self._read += 1
        return self._before.get((step, name), RunningMean())

    def _take(self, step: int) -> None:
        summary = self._summary(step)
        for name, row in summary.rows.items() if summary is not None else ():
            before = self._means.get(name, RunningMean())
            self._before[step, name] = before
            self._means[name] = before.with_norm(row.norm)


def judge_norm(
    norm: float, before: RunningMean, settings: GradientSettings
) -> tuple[Literal["", "turbulence", "collapse"], str]:
    """(kind, what is wrong) for a finite norm; two empty texts when nothing is, or too few steps are known."""
    kind: Literal["", "turbulence", "collapse"] = ""
    if norm > before.mean * (1 + settings.turbulence):
        kind = "turbulence"
    elif settings.collapse is not None and norm < before.mean * settings.collapse:
        kind = "collapse"
    if before.count < settings.warmup or not kind:
        return "", ""
    times = f"{norm / before.mean:.3g} times the mean {before.mean:.4g} of {before.count} steps before"
    return kind, f"norm {norm:.4g} is {times}"


class EarlierStep(NamedTuple):
    """A parameter's similarity at a step before."""

    step: int
    similarity: float


def _is_below(value: float, limit: float) -> bool:
    """Whether a value is below its limit, and not by rounding alone: 0.98 - 0.95 is more than 0.03."""
    return value < limit - Absolute.ROUNDED_SIMILARITY


def judge_similarity(
    similarity: float, earlier: Callable[[], Iterable[EarlierStep]], settings: GradientSettings
) -> tuple[str, str]:
    """(what is wrong, "" when nothing is; how it compares with before) for one parameter at one step.

    `earlier` gives the steps before that could be compared, the latest first, and is read only as far as needed.
    """
    steps = iter(earlier())
    before = next(steps, None)
    if before is None:
        if _is_below(similarity, settings.first):
            return f"similarity {similarity:.4f} at the first step is below {settings.first:g}", "first step"
        return "", "first step"
    wrong = ""
    if _is_below(settings.drop, before.similarity - similarity):
        fall = f"{before.similarity - similarity:.4f} below that of step {before.step}; it may fall by"
        wrong = f"similarity {similarity:.4f} is {fall} {settings.drop:g}"
    elif settings.drift is not None:
        best = max((before, *steps), key=lambda entry: entry.similarity)
        if _is_below(settings.drift, best.similarity - similarity):
            fall = f"{best.similarity - similarity:.4f} below the best, of step {best.step}; it may drift by"
            wrong = f"similarity {similarity:.4f} is {fall} {settings.drift:g}"
    return wrong, f"{similarity - before.similarity:+.4f} since step {before.step}"


class GradientCheck:
    """Verdicts on the gradients of one run, alone or against another.

    Kept are a few figures per gradient; of the gradients themselves, never more than a chunk of two is in memory.
    """

    def __init__(self, pair: RunPair, settings: GradientSettings) -> None:
        self.pair = pair
        self._settings = settings
        # Summaries in memory: of both runs, for the step that is judged and the one before.
        self._read = lru_cache(4)(read_summary)
        self._agreements: dict[tuple[int, int, str], SignAgreement | None] = {}
        self._history = cache(self._history_of)
        self._steps = {rank: pair.steps(rank) for rank in pair.target.ranks}

    def parameters(self, rank: int, step: int) -> list[str]:
        """The parameters of one step, in the order of the optimizer, then those that only the golden run has.

        Raises:
            DumpError: a summary cannot be read.
        """
        target, golden = self._summaries(rank, step)
        return list(dict.fromkeys((*target.rows, *(golden.rows if golden is not None else ()))))

    def verdict(self, rank: int, step: int, name: str) -> GradientResult:
        """The verdict on the gradient of the parameter `name`. Raises DumpError when a summary cannot be read."""
        target, golden = self._summaries(rank, step)
        row, reference = target.rows.get(name), golden.rows.get(name) if golden is not None else None
        result = GradientResult(rank, step, name, row.order if row is not None else len(target.rows), "error")
        if golden is not None and (row is None or reference is None):
            missing, other = (target, golden) if row is None else (golden, target)
            return replace(result, kind="unmatched", message=f"{missing.path} has no {name}, which {other.path} has")
        assert row is not None  # parameters() took it from there
        if fault := row.fault or (reference.fault if reference is not None else ""):
            return replace(result, kind="unreadable", message=fault)
        if reference is not None and row.shape != reference.shape:
            shapes = f"its shape is {list(row.shape)}, that of the golden run {list(reference.shape)}"
            return replace(result, kind="unmatched", message=shapes)
        result = replace(result, shape=row.shape, norm=row.norm)
        unsound = _unsound(result, row)
        if reference is None:
            return unsound or self._of_one_run(result, row)
        if unsound is not None:
            details = (f"golden: {reference.nonfinite() or 'all finite'}",)
            return replace(unsound, details=details, agreement=self._agreement(rank, step, name))
        if row.md5 is not None or reference.md5 is not None:
            return self._of_bits(result, row, reference)
        return self._of_signs(result, row, reference)

    def _of_one_run(self, result: GradientResult, row: GradientRow) -> GradientResult:
        if row.is_zero and self._settings.fails_zero:
            return replace(result, kind="zero", message=f"all {row.size} elements are 0")
        kind, message = judge_norm(row.norm, self._history(result.rank).before(result.step, row.name), self._settings)
        if kind:
            return replace(result, kind=kind, message=message)
        return replace(result, status="pass", message=f"norm {row.norm:.4g}" if not row.is_zero else "zero throughout")

    def _of_bits(self, blank: GradientResult, row: GradientRow, golden: GradientRow) -> GradientResult:
        if row.md5 is None or golden.md5 is None:
            return replace(blank, status="skip", kind="unjudged", message="one run has level L0, without signs")
        if row.md5 == golden.md5:
            return replace(blank, status="pass", message="equal in every bit")
        if self._settings.fails_md5:
            return replace(blank, kind="bits", message=f"not equal in every bit: MD5 {row.md5}, golden {golden.md5}")
        reason = (
            "not equal in every bit, and level L0 has no signs: record grad_level L1 or L2, "
            "or use --msprobe-gradient-fail-md5 where equal bits are due"
        )
        return replace(blank, status="skip", kind="unjudged", message=reason)

    def _of_signs(self, blank: GradientResult, row: GradientRow, golden: GradientRow) -> GradientResult:
        try:
            agreement = compare_signs(row, *self._both(blank.rank, blank.step))
        except DumpError as error:
            return replace(blank, kind="unreadable", message=str(error))
        self._agreements[blank.rank, blank.step, row.name] = agreement
        wrong, change = judge_similarity(
            agreement.similarity, lambda: self._earlier(blank.rank, blank.step, row.name), self._settings
        )
        compared = replace(blank, agreement=agreement)
        if not wrong:
            return replace(compared, status="pass", message=f"similarity {agreement.similarity:.4f}, {change}")
        details = (
            f"signs  {agreement.agreeing} of {agreement.size} agree",
            f"norm   {row.norm:.6g}, golden {golden.norm:.6g}",
        )
        return replace(compared, kind="similarity", message=wrong, details=details)

    def _earlier(self, rank: int, step: int, name: str) -> Iterator[EarlierStep]:
        steps = self._steps[rank]
        for place in range(bisect_left(steps, step) - 1, -1, -1):
            agreement = self._agreement(rank, steps[place], name)
            if agreement is not None and agreement.size:
                yield EarlierStep(steps[place], agreement.similarity)

    def _agreement(self, rank: int, step: int, name: str) -> SignAgreement | None:
        """Agreement of the signs in one step, compared once; None where they cannot be compared."""
        key = (rank, step, name)
        if key not in self._agreements:
            self._agreements[key] = self._agreement_in_files(*key)
        return self._agreements[key]

    def _agreement_in_files(self, rank: int, step: int, name: str) -> SignAgreement | None:
        with suppress(DumpError):  # the item of that step says so
            target, golden = self._both(rank, step)
            row, reference = target.rows.get(name), golden.rows.get(name)
            if row is None or reference is None or row.fault or reference.fault or row.shape != reference.shape:
                return None
            return compare_signs(row, target, golden)
        return None

    def _history_of(self, rank: int) -> NormHistory:
        def summary(step: int) -> StepSummary | None:
            with suppress(DumpError):  # the collection of that step says so
                return self._read(self.pair.target.steps[rank][step])
            return None

        return NormHistory(self._steps[rank], summary)

    def _summaries(self, rank: int, step: int) -> tuple[StepSummary, StepSummary | None]:
        target, golden = self._read(self.pair.target.steps[rank][step]), self.pair.golden
        return target, self._read(golden.steps[rank][step]) if golden is not None else None

    def _both(self, rank: int, step: int) -> tuple[StepSummary, StepSummary]:
        target, golden = self._summaries(rank, step)
        assert golden is not None  # asked only where two runs are compared
        return target, golden


def _unsound(result: GradientResult, row: GradientRow) -> GradientResult | None:
    """The verdict on a gradient that no rule on values can judge."""
    if not row.size:
        message = "an empty gradient has nothing to judge"
        return replace(result, status="skip", kind="unjudged", message=message, agreement=SignAgreement(0, 0))
    nonfinite = row.nonfinite()
    return replace(result, kind="nonfinite", message=nonfinite) if nonfinite else None
