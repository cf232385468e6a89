"""Judging the gradients of a run: one at a time, each from files that are read when they are needed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.suites.gradients.norm_history import NormHistory, judge_norm
from pytest_msprobe.suites.gradients.options import GradientSettings
from pytest_msprobe.suites.gradients.result import GradientResult
from pytest_msprobe.suites.gradients.run import GradientRun, RunPair
from pytest_msprobe.suites.gradients.signs import SignAgreement, compare_signs
from pytest_msprobe.suites.gradients.similarity_rule import EarlierStep, judge_similarity
from pytest_msprobe.suites.gradients.step_summary import GradientRow, StepSummary, read_summary

#: Summaries in memory: of both runs, for the step that is judged and the one before.
_KEPT_SUMMARIES = 4


class GradientCheck:
    """Verdicts on the gradients of one run, alone or against another.

    Kept are a few figures per gradient; of the gradients themselves, never more than a chunk of two is in memory.
    """

    def __init__(self, pair: RunPair, settings: GradientSettings) -> None:
        self.pair = pair
        self._settings = settings
        self._read = lru_cache(_KEPT_SUMMARIES)(read_summary)
        self._agreements: dict[tuple[int, int, str], SignAgreement | None] = {}
        self._histories: dict[int, NormHistory] = {}
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
        row = target.rows.get(name)
        blank = GradientResult(rank, step, name, row.order if row is not None else len(target.rows), "error")
        if golden is None:
            assert row is not None  # parameters() took it from there
            return self._of_one_run(blank, row)
        reference = golden.rows.get(name)
        if row is None or reference is None:
            missing, other = (target, golden) if row is None else (golden, target)
            return replace(blank, kind="unmatched", message=f"{missing.path} has no {name}, which {other.path} has")
        return self._of_two_runs(blank, row, reference)

    def _of_one_run(self, blank: GradientResult, row: GradientRow) -> GradientResult:
        unsound = self._unsound(blank, row)
        if unsound is not None:
            return unsound
        blank = replace(blank, shape=row.shape, norm=row.norm)
        if row.is_zero and self._settings.zero:
            return replace(blank, kind="zero", message=f"all {row.size} elements are 0")
        kind, message = judge_norm(row.norm, self._history(blank.rank).before(blank.step, row.name), self._settings)
        if kind:
            return replace(blank, kind=kind, message=message)
        return replace(blank, status="pass", message=f"norm {row.norm:.4g}" if not row.is_zero else "zero throughout")

    def _of_two_runs(self, blank: GradientResult, row: GradientRow, golden: GradientRow) -> GradientResult:
        if row.fault or golden.fault:
            return replace(blank, kind="unreadable", message=row.fault or golden.fault)
        if row.shape != golden.shape:
            shapes = f"its shape is {list(row.shape)}, that of the golden run {list(golden.shape)}"
            return replace(blank, kind="unmatched", message=shapes)
        unsound = self._unsound(blank, row)
        if unsound is not None:
            unsound = replace(unsound, details=(f"golden: {golden.nonfinite() or 'all finite'}",))
            return replace(unsound, agreement=self._agreement(blank.rank, blank.step, row.name))
        blank = replace(blank, shape=row.shape, norm=row.norm)
        if row.md5 is not None or golden.md5 is not None:
            return self._of_bits(blank, row, golden)
        return self._of_signs(blank, row, golden)

    def _of_bits(self, blank: GradientResult, row: GradientRow, golden: GradientRow) -> GradientResult:
        if row.md5 is None or golden.md5 is None:
            return replace(blank, status="skip", kind="unjudged", message="one run has level L0, without signs")
        if row.md5 == golden.md5:
            return replace(blank, status="pass", message="equal in every bit")
        if self._settings.md5:
            return replace(blank, kind="bits", message=f"not equal in every bit: MD5 {row.md5}, golden {golden.md5}")
        reason = (
            "not equal in every bit, and level L0 has no signs: record grad_level L1 or L2, "
            "or use --msprobe-gradient-md5 where equal bits are due"
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
        found = replace(blank, agreement=agreement)
        if not wrong:
            return replace(found, status="pass", message=f"similarity {agreement.similarity:.4f}, {change}")
        details = (
            f"signs  {agreement.agreeing} of {agreement.size} agree",
            f"norm   {row.norm:.6g}, golden {golden.norm:.6g}",
        )
        return replace(found, kind="similarity", message=wrong, details=details)

    def _unsound(self, blank: GradientResult, row: GradientRow) -> GradientResult | None:
        """The verdict on a gradient that no rule on values can judge."""
        if row.fault:
            return replace(blank, kind="unreadable", message=row.fault)
        blank = replace(blank, shape=row.shape, norm=row.norm)
        if not row.size:
            message = "an empty gradient has nothing to judge"
            return replace(blank, status="skip", kind="unjudged", message=message, agreement=SignAgreement(0, 0))
        nonfinite = row.nonfinite()
        return replace(blank, kind="nonfinite", message=nonfinite) if nonfinite else None

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
            self._agreements[key] = self._agreement_in_files(rank, step, name)
        return self._agreements[key]

    def _agreement_in_files(self, rank: int, step: int, name: str) -> SignAgreement | None:
        try:
            target, golden = self._both(rank, step)
            row, reference = target.rows.get(name), golden.rows.get(name)
            if row is None or reference is None or row.fault or reference.fault or row.shape != reference.shape:
                return None
            return compare_signs(row, target, golden)
        except DumpError:
            return None  # the item of that step says so

    def _history(self, rank: int) -> NormHistory:
        if rank not in self._histories:

            def summary(step: int) -> StepSummary | None:
                try:
                    return self._summary(self.pair.target, rank, step)
                except DumpError:
                    return None  # the collection of that step says so

            self._histories[rank] = NormHistory(self._steps[rank], summary)
        return self._histories[rank]

    def _summaries(self, rank: int, step: int) -> tuple[StepSummary, StepSummary | None]:
        golden = self.pair.golden
        return (
            self._summary(self.pair.target, rank, step),
            self._summary(golden, rank, step) if golden is not None else None,
        )

    def _both(self, rank: int, step: int) -> tuple[StepSummary, StepSummary]:
        target, golden = self._summaries(rank, step)
        assert golden is not None  # asked only where two runs are compared
        return target, golden

    def _summary(self, run: GradientRun, rank: int, step: int) -> StepSummary:
        return self._read(run.steps[rank][step])
