"""A run's gradients as pytest nodes: run, rank, step, parameter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from time import perf_counter
from typing import Any

import pytest

from msprobe_collector.dump_format import DumpError
from pytest_msprobe import _keys
from pytest_msprobe.gradients.session import GradientSession
from pytest_msprobe.gradients.verdict import GradientVerdict
from pytest_msprobe.gradients.verdict_row import verdict_row
from pytest_msprobe.node_names import escape
from pytest_msprobe.reports.row import Status, VerdictRow
from pytest_msprobe.reports.suite_reports import send_row

#: Name of the item for all gradients of a step.
WHOLE_STEP = "gradients"


class GradientFailure(Exception):
    """An `error` verdict on its way to pytest; the text is all that the report shows."""


class RunFolder(pytest.Directory):
    """A run; its children are its ranks, in order, then those that only the golden run has."""

    gradients: GradientSession

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path, gradients: GradientSession) -> RunFolder:
        """The node for the run at `path`."""
        node: RunFolder = cls.from_parent(parent, path=path, nodeid=gradients.node_id(path))
        node.gradients = gradients
        return node

    def collect(self) -> Iterator[pytest.Collector]:
        """One node per rank."""
        pair = self.gradients.pair
        for rank in pair.all_ranks():
            if rank in pair.target.ranks:
                yield RankFolder.of(self, pair.target.ranks[rank], self.gradients)
            else:
                yield Unpaired.of(self, f"rank{rank}", pair.unpaired(rank))


class RankFolder(pytest.Directory):
    """The folder of one rank; its children are its steps, in order, read one at a time."""

    gradients: GradientSession

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path, gradients: GradientSession) -> RankFolder:
        """The node for the folder at `path`."""
        node: RankFolder = cls.from_parent(parent, path=path, nodeid=gradients.node_id(path))
        node.gradients = gradients
        return node

    def collect(self) -> Iterator[pytest.Collector]:
        """One node per step that can be judged, and one that says which cannot."""
        pair = self.gradients.pair
        rank = next(rank for rank, folder in pair.target.ranks.items() if folder == self.path)
        for step in pair.steps(rank):
            yield StepFile.of(self, pair.target.steps[rank][step], self.gradients)
        if unpaired := pair.unpaired(rank):
            yield Unpaired.of(self, "unpaired", unpaired)


class Unpaired(pytest.Collector):
    """What only one of two runs has: an error of the collection, as a dump that cannot be read is."""

    sentence: str

    @classmethod
    def of(cls, parent: pytest.Collector, name: str, sentence: str) -> Unpaired:
        """A node that says `sentence`."""
        node: Unpaired = cls.from_parent(parent, name=name)
        node.sentence = sentence
        return node

    def collect(self) -> Iterator[pytest.Item]:
        """Nothing. Raises CollectError."""
        raise self.CollectError(self.sentence)


class StepFile(pytest.File):
    """The summary file of one rank and step; its children are the gradients."""

    gradients: GradientSession
    rank: int
    step: int

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path, gradients: GradientSession) -> StepFile:
        """The node for the summary at `path`."""
        place = gradients.pair.find(path)
        assert place is not None  # the caller has seen to it
        node: StepFile = cls.from_parent(parent, path=path, nodeid=gradients.node_id(path))
        node.gradients, (node.rank, node.step) = gradients, place
        return node

    def collect(self) -> Iterator[GradientItem]:
        """One item per parameter, or one for all."""
        try:
            parameters = self.gradients.check.parameters(self.rank, self.step)
        except DumpError as error:
            raise self.CollectError(str(error)) from None
        if not parameters:
            raise self.CollectError(f"{self.path}: holds no gradient; record this step again")
        if self.gradients.settings.items == "step":
            yield GradientItem.of(self, WHOLE_STEP, parameters)
        else:
            for parameter in parameters:
                yield GradientItem.of(self, escape(parameter), [parameter])


class GradientItem(pytest.Item):
    """The gradient of one parameter at one step, or those of all parameters.

    Attributes:
        parameters: which are judged.
        found: the verdicts on them, once the item has run.
    """

    parent: StepFile
    parameters: list[str]
    found: list[GradientVerdict]

    @classmethod
    def of(cls, parent: StepFile, name: str, parameters: list[str]) -> GradientItem:
        """The item named `name` for `parameters` of the step `parent`."""
        item: GradientItem = cls.from_parent(parent, name=name)
        item.parameters, item.found = parameters, []
        return item

    def runtest(self) -> None:
        """Judge, keep the row for the reports, and raise or skip as the verdict says."""
        started = perf_counter()
        file = self.parent
        self.found = [file.gradients.check.verdict(file.rank, file.step, parameter) for parameter in self.parameters]
        row = self.stash[_keys.ROW] = self.row(perf_counter() - started)
        if len(self.found) == 1 and self.found[0].agreement is not None:
            self.user_properties.append(("similarity", self.found[0].agreement.similarity))
        if row.status == "skip":
            pytest.skip(row.message)
        if row.status == "error":
            raise GradientFailure(self._failure_text())

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        """The explanation instead of a traceback through our own code."""
        if isinstance(excinfo.value, (GradientFailure, DumpError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **kwargs)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Headline of a failure."""
        what = "gradients" if len(self.parameters) > 1 else self.parameters[0]
        return self.path, 0, f"{what}, rank {self.parent.rank}, step {self.parent.step}"

    def row(self, seconds: float = 0.0, *, status: Status | None = None, message: str = "") -> VerdictRow:
        """The verdict row of this item; `status` and `message` are those of one that did not run."""
        gradients = self.parent.gradients
        what = WHOLE_STEP if gradients.settings.items == "step" else self.parameters[0]
        golden = gradients.pair.golden
        return verdict_row(
            self.found,
            place=(self.nodeid, str(self.path), f"{what}.step{self.parent.step}"),
            bench=f"golden run {golden.root}" if golden is not None else "",
            seconds=seconds,
            host=gethostname(),
            instead=(status, message) if status is not None else None,
        )

    def _failure_text(self) -> str:
        wrong = [verdict for verdict in self.found if verdict.status == "error"]
        lines = []
        for verdict in wrong:
            lines.append(f"{verdict.parameter} {list(verdict.shape)}: {verdict.message}")
            lines += [f"  {line}" for line in verdict.details]
        golden = self.parent.gradients.pair.golden
        against = f"; benchmark: {golden.steps[wrong[0].rank][wrong[0].step]}" if golden is not None else ""
        return "\n".join([*lines, "", f"tested: {self.path}{against}"])


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put the row of `item`, and the verdicts behind it, on the report that every process can read."""
    if not isinstance(item, GradientItem):
        return
    if send_row(item, report, _keys.ROW, unrun=lambda status, reason: item.row(status=status, message=reason)):
        # An extra attribute, as the row is.
        report.msprobe_gradients = [found.to_wire() for found in item.found]  # type: ignore[attr-defined]
        item.found = []  # pytest keeps its items to the end
