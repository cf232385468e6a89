"""Gradients as a suite: one item per rank, step and parameter, or per rank and step.

Verdicts on gradients as the row that all reports take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msprobe_collector.dump_format import ApiName
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.suites.contract import Context, Group, Problem, Record, Suite, SuiteError, SuiteReport, escape
from pytest_msprobe.suites.gradients.findings import GradientResult, GradientSummary, Kind
from pytest_msprobe.suites.gradients.options import OPTIONS, GradientSettings
from pytest_msprobe.suites.gradients.report import GradientReport
from pytest_msprobe.suites.gradients.run import RunError, RunPair
from pytest_msprobe.verdicts import Figure, OutputRow, Status, StepPosition, Verdict

if TYPE_CHECKING:
    from pytest_msprobe.suites.gradients.check import GradientCheck


def verdict_of(found: Sequence[GradientResult], *, bench: str, text: str) -> Verdict:
    """The verdict on one item: each gradient is an output. `bench` is what they were compared with, `text` explains."""
    status = _status(found)
    return Verdict(
        status,
        _message(found),
        outputs=tuple(_output(verdict, is_alone=len(found) == 1) for verdict in found),
        explanation=text if status == "error" else "",
        bench=bench if any(verdict.agreement is not None for verdict in found) else "",
        attachment={"verdicts": [verdict.to_wire() for verdict in found]},
    )


def explanation(found: Sequence[GradientResult], tested: str, benchmark: str) -> str:
    """What is wrong with each gradient that fails, and which files say so."""
    lines = []
    for verdict in found:
        if verdict.status == "error":
            lines.append(f"{verdict.parameter} {list(verdict.shape)}: {verdict.message}")
            lines += [f"  {line}" for line in verdict.details]
    against = f"; benchmark: {benchmark}" if benchmark else ""
    return "\n".join(map(printable, [*lines, "", f"tested: {tested}{against}"]))


def _status(found: Sequence[GradientResult]) -> Status:
    states = {verdict.status for verdict in found}
    return "error" if "error" in states else "pass" if "pass" in states else "skip"


def _message(found: Sequence[GradientResult]) -> str:
    if len(found) == 1:
        return found[0].message
    worst = [verdict for verdict in found if verdict.status == _status(found)]
    named = "; ".join(f"{verdict.parameter}: {verdict.message}" for verdict in worst[:3])
    count = f"{len(worst)} of {len(found)} gradients"
    return f"{count} passed" if _status(found) == "pass" else f"{count}: {named}{'; ...' if len(worst) > 3 else ''}"


def _output(verdict: GradientResult, *, is_alone: bool) -> OutputRow:
    return OutputRow(
        label=verdict.parameter,
        bench_dtype="",
        tested_dtype="",
        shape=verdict.shape,
        status=verdict.status,
        message="" if is_alone else verdict.message,  # of one, it is that of the item
        figures={
            "similarity": verdict.agreement.similarity if verdict.agreement is not None else None,
            "norm": verdict.norm,
        },
    )


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
    options = OPTIONS
    figures = (Figure("similarity", "Similarity", ".6f", is_low_bad=True), Figure("norm", "Norm", ".4g"))
    severity_figures = ("similarity",)

    @classmethod
    def summary(cls) -> GradientSummary:
        """The first problem step."""
        return GradientSummary()

    def __init__(self, context: Context, pair: RunPair, settings: GradientSettings) -> None:
        self._context = context
        self.pair = pair
        self.settings = settings

    @property
    def files(self) -> tuple[Path, ...]:
        """The summary files of all steps."""
        return tuple(path for steps in self.pair.target.steps.values() for path in steps.values())

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folder of the run."""
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

    def judge(self, record: Record) -> Verdict:
        """The verdict on one gradient, or on all of a step."""
        payload: StepGradients = record.payload
        found = [self._check.verdict(payload.rank, payload.step, name) for name in payload.parameters]
        golden = self.pair.golden
        against = f"golden run {golden.root}" if golden is not None else ""
        benchmark = str(golden.steps.get(payload.rank, {}).get(payload.step, "")) if golden is not None else ""
        return verdict_of(found, bench=against, text=explanation(found, str(record.file), benchmark))

    def attachment_of_unjudged(self, record: Record, status: Status, message: str) -> Mapping[str, Any]:
        """Gradients that were not judged, for the findings."""
        payload: StepGradients = record.payload
        kind: Kind = "unjudged" if status == "skip" else "unreadable"
        verdicts = (
            GradientResult(payload.rank, payload.step, name, order, status, kind, message)
            for order, name in enumerate(payload.parameters)
        )
        return {"verdicts": [verdict.to_wire() for verdict in verdicts]}

    def headline(self, record: Record) -> str:
        """`embed.weight, rank 0, step 3`."""
        payload: StepGradients = record.payload
        what = WHOLE_STEP if len(payload.parameters) > 1 else payload.parameters[0]
        return f"{what}, rank {payload.rank}, step {payload.step}"

    def api(self, record: Record) -> ApiName:
        """The name that hooks get: type Gradient, the parameter, and the step in place of the call's number."""
        payload: StepGradients = record.payload
        what = WHOLE_STEP if self.settings.items == STEP else payload.parameters[0]
        return ApiName("Gradient", what, payload.step)

    def place(self, record: Record) -> StepPosition:
        """Place in the order of the optimizer; the Cells of a parameter are the words of its name."""
        payload: StepGradients = record.payload
        name = payload.parameters[0] if len(payload.parameters) == 1 else ""
        words = name.split(".")[:-1]
        return StepPosition(
            order=self._check.parameters(payload.rank, payload.step).index(name) if name else -1,
            cells=tuple(printable(".".join(words[: depth + 1])) for depth in range(len(words))),
            rank=payload.rank,
            step=payload.step,
        )

    def marks(self, record: Record) -> tuple[str, ...]:
        """All are gradients."""
        return ("Gradient",)

    def header(self) -> list[str]:
        """Which run is judged, against which."""
        return self._report.header()

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        """Similarities, pictures and findings."""
        return self._report

    @cached_property
    def _report(self) -> GradientReport:
        has_page = bool(self._context.config.getoption("htmlpath", None))
        return GradientReport(self.pair, self._context.out, has_page=has_page)

    @cached_property
    def _check(self) -> GradientCheck:
        from pytest_msprobe.suites.gradients.check import GradientCheck

        return GradientCheck(self.pair, self.settings)


SUITE = GradientSuite


def make(context: Context) -> GradientSuite:
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
    try:
        return GradientSuite(context, RunPair.of(settings.run, settings.golden), settings)
    except RunError as error:
        raise SuiteError(str(error)) from None
