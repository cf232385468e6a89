"""Gradients as a suite: one item per rank, step and parameter, or per rank and step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msprobe_collector.dump_format import ApiName, Dump, Frame
from msprobe_collector.dump_format.values import counted, printable
from pytest_msprobe.suites.contract import (
    Context,
    Group,
    ItemRecord,
    Problem,
    Suite,
    SuiteError,
    SuiteReport,
    escape,
    refuse_unused,
)
from pytest_msprobe.suites.gradients import AGAINST_GOLDEN, ALONE, GradientSettings
from pytest_msprobe.suites.gradients.findings import Findings, GradientResult, Kind
from pytest_msprobe.suites.gradients.report import GradientReport
from pytest_msprobe.suites.gradients.run import RunError, RunPair, number_ranges
from pytest_msprobe.verdicts import Figure, OutputRow, Status, StepPosition, Verdict

if TYPE_CHECKING:
    from pytest_msprobe.suites.gradients.check import GradientCheck


#: Name of the item for all gradients of a step.
WHOLE_STEP = "gradients"
#: The value of --msprobe-gradient-items for one item per step.
STEP = "step"


class StepGradients(NamedTuple):
    """The payload of a group: which gradients an item judges."""

    rank: int
    step: int
    parameters: tuple[str, ...]


class GradientSuite(Suite):
    """The gradients of one run, alone or against those of another.

    Attributes:
        pair: the files of both.
        settings: how they are judged.
    """

    name = "gradients"
    title = "Gradients"
    item_noun = "gradients"
    group_noun = "parameters"
    call_names_are_unique = True
    figures = (Figure("similarity", "Similarity", ".6f", is_low_bad=True), Figure("norm", "Norm", ".4g"))
    severity_figures = ("similarity",)
    passing = "rules"
    summary = Findings

    @classmethod
    def make(cls, context: Context) -> GradientSuite:
        """The suite for one process of a run.

        Raises:
            SuiteError: there are no gradients, or dumps are to be judged as well.
        """
        settings = GradientSettings.of(context.values)
        if settings.run is None:
            raise SuiteError("--msprobe-suite=gradients needs --msprobe-gradients=DIR, the dump_path of a grad_probe")
        if context.dumps:
            raise SuiteError(
                f"--msprobe-gradients={settings.run}: gradients and dumps are judged in separate runs; "
                f"{context.dumps[0]} is a dump"
            )
        if settings.golden is None:
            refuse_unused(context, AGAINST_GOLDEN, "has no effect without --msprobe-golden, the run to compare with")
        else:
            refuse_unused(context, ALONE, "has no effect with --msprobe-golden: it judges a run alone")
        try:
            return cls(context, RunPair.of(settings.run, settings.golden), settings)
        except RunError as error:
            raise SuiteError(str(error)) from None

    def __init__(self, context: Context, pair: RunPair, settings: GradientSettings) -> None:
        super().__init__(context)
        self.pair = pair
        self.settings = settings

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for steps in self.pair.target.steps.values() for path in steps.values())

    @property
    def roots(self) -> tuple[Path, ...]:
        return (self.pair.target.root,)

    def folder(self, path: Path) -> Sequence[Path | Problem] | None:
        """A run and its ranks: steps in order, and no look at the files of signs."""
        target = self.pair.target
        rank = next((rank for rank, folder in target.ranks.items() if folder == path), None)
        if rank is not None:
            unpaired = self.pair.unpaired(rank)
            steps: list[Path | Problem] = [target.steps[rank][step] for step in self.pair.steps(rank)]
            return [*steps, Problem("unpaired", unpaired)] if unpaired else steps
        if path != target.root:
            return None
        ranks = self.pair.all_ranks()
        return [target.ranks.get(rank) or Problem(f"rank{rank}", self.pair.unpaired(rank)) for rank in ranks]

    def groups(self, file: Path) -> Iterator[Group]:
        """One record per parameter, or one for all.

        Raises:
            SuiteError: the summary holds no gradient.
        """
        place = self.pair.find(file)
        if place is None:
            return
        parameters = self._check.parameters(*place)
        if not parameters:
            raise SuiteError(f"{file}: holds no gradient; record this step again")
        if self.settings.items == STEP:
            yield Group("", f"{WHOLE_STEP}.step{place[1]}", (WHOLE_STEP,), StepGradients(*place, tuple(parameters)))
            return
        for parameter in parameters:
            payload = StepGradients(*place, (parameter,))
            yield Group("", f"{parameter}.step{place[1]}", (escape(parameter),), payload)

    def judge(self, record: ItemRecord) -> Verdict:
        rank, step, parameters = record.payload
        results = [self._check.verdict(rank, step, name) for name in parameters]
        order: tuple[Status, ...] = ("error", "pass", "skip")
        status = min(map(attrgetter("status"), results), key=order.index)
        outputs = tuple(_output(result, is_alone=len(results) == 1) for result in results)
        attachment = {"verdicts": [result.to_wire() for result in results]}
        verdict = Verdict(status, _message(results, status), outputs, attachment=attachment)
        golden, benchmark = self.pair.golden, None
        if golden is not None:
            benchmark = golden.steps.get(rank, {}).get(step)
            if any(result.agreement is not None for result in results):
                verdict = replace(verdict, bench=f"golden run {golden.root}")
        if status == "error":
            return replace(verdict, explanation=_explanation(results, record.file, benchmark))
        return verdict

    def attachment_of_unjudged(self, record: ItemRecord, status: Status, message: str) -> Mapping[str, Any]:
        """Gradients that were not judged, for the findings."""
        rank, step, parameters = record.payload
        kind: Kind = "unjudged" if status == "skip" else "unreadable"
        results = []
        for order, name in enumerate(parameters):
            results.append(GradientResult(rank, step, name, order, status, kind=kind, message=message).to_wire())
        return {"verdicts": results}

    def headline(self, record: ItemRecord) -> str:
        """`embed.weight, rank 0, step 3`."""
        rank, step, parameters = record.payload
        return f"{WHOLE_STEP if len(parameters) > 1 else parameters[0]}, rank {rank}, step {step}"

    def api(self, record: ItemRecord) -> ApiName:
        """The name that hooks get: type Gradient, the parameter, and the step in place of the call's number."""
        _, step, parameters = record.payload
        return ApiName("Gradient", WHOLE_STEP if self.settings.items == STEP else parameters[0], step)

    def place(self, record: ItemRecord) -> StepPosition:
        """Place in the order of the optimizer; the Cells of a parameter are the words of its name."""
        rank, step, parameters = record.payload
        name = parameters[0] if len(parameters) == 1 else ""
        cells = accumulate(name.split(".")[:-1], "{}.{}".format)
        order = self._check.parameters(rank, step).index(name) if name else -1
        return StepPosition(order=order, cells=tuple(map(printable, cells)), rank=rank, step=step)

    def marks(self, record: ItemRecord) -> tuple[str, ...]:
        return ("Gradient",)

    def frames(self, record: ItemRecord) -> Sequence[Frame]:
        return ()

    def dumps(self) -> Iterator[Dump]:
        return iter(())

    def header(self) -> list[str]:
        target, golden = self.pair.target, self.pair.golden
        steps = sum(len(self.pair.steps(rank)) for rank in target.ranks)
        size = f"ranks {number_ranges(target.ranks)}, {counted(steps, 'steps')} in all"
        against = f"compared with {golden.root}" if golden is not None else "one run, without a golden run"
        lines = [f"msprobe: gradients of {target.root}: {size}; {against}"]
        return [*lines, *map("msprobe: not compared: {}".format, self.pair.all_unpaired())]

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        has_page = bool(self._context.config.getoption("htmlpath", None))
        return GradientReport(self.pair, self._context.out, has_page=has_page)

    @cached_property
    def _check(self) -> GradientCheck:
        from pytest_msprobe.suites.gradients.check import GradientCheck

        return GradientCheck(self.pair, self.settings)


def _message(results: Sequence[GradientResult], status: Status) -> str:
    if len(results) == 1:
        return results[0].message
    worst = [result for result in results if result.status == status]
    count = f"{len(worst)} of {len(results)} gradients"
    if status == "pass":
        return f"{count} passed"
    named = "; ".join(f"{result.parameter}: {result.message}" for result in worst[:3])
    return f"{count}: {named}{'; ...' if len(worst) > 3 else ''}"


def _explanation(results: Sequence[GradientResult], tested: Path, benchmark: Path | None) -> str:
    """What is wrong with each gradient that fails, and which files say so."""
    lines = []
    for result in results:
        if result.status == "error":
            lines.append(f"{result.parameter} {list(result.shape)}: {result.message}")
            lines += map("  {}".format, result.details)
    against = f"; benchmark: {benchmark}" if benchmark is not None else ""
    return "\n".join(map(printable, [*lines, "", f"tested: {tested}{against}"]))


def _output(result: GradientResult, *, is_alone: bool) -> OutputRow:
    similarity = None if result.agreement is None else result.agreement.similarity
    return OutputRow(
        label=result.parameter,
        bench_dtype="",
        tested_dtype="",
        shape=result.shape,
        status=result.status,
        message="" if is_alone else result.message,  # of one, it is that of the item
        figures={"similarity": similarity, "norm": result.norm},
    )
