"""A step of several ranks without a logical run: each call judged once by the laws, and what comes first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.suites.sharded.inference import RankCall, RankGroup, RankLaw, StepSpread
from pytest_msprobe.suites.sharded.judgement import PHASES, Phase, RecordFinding, ValueFinding, forward_of, phase_of
from pytest_msprobe.suites.sharded.laws import all_laws
from pytest_msprobe.suites.sharded.outline import CallPlaces
from pytest_msprobe.suites.sharded.ranks import RankDump, RunSteps, ShardedStep
from pytest_msprobe.suites.sharded.session import Role

_WORST = ("unexplained", "unreadable", "missing", "placed", "unjudged")


class StepLaws:
    """The laws, asked of one step.

    Attributes:
        step: the ranks.
        spread: how it is spread over them.
    """

    def __init__(self, step: ShardedStep) -> None:
        self.step = step
        self.spread = StepSpread(step)
        self._laws: tuple[RankLaw, ...] = all_laws(self.spread)
        self._findings = cache(self._judged)

    def operations(self, dump: RankDump) -> list[Operation]:
        """The records of a rank that are no call of a rank before it: each call is judged once."""
        together = self.spread.together
        return [it for it in dump.operations if min(together(dump, it.record)) == dump.number]

    def finding(self, dump: RankDump, operation: Operation) -> RecordFinding:
        """What the laws say of the values of a call."""
        return self._findings(dump, operation)

    @cached_property
    def first(self) -> dict[Phase, tuple[int, str]]:
        """The rank and record of the first call of each pass that breaks a law."""
        first: dict[Phase, tuple[int, str]] = {}
        for dump in self.step.ranks.values():
            for operation in self.operations(dump):
                finding = self.finding(dump, operation)
                if finding.wrong:
                    first.setdefault(finding.phase, (dump.number, operation.record))
        return first

    def role(self, dump: RankDump, finding: RecordFinding) -> Role:
        """What a call has to do with the broken laws of its step: what comes behind the first of a pass follows."""
        if not finding.wrong:
            return "right"
        earliest = next(phase for phase in PHASES if phase in self.first)
        if finding.phase == earliest and self.first[earliest] == (dump.number, finding.record):
            return "first"
        return "own" if self.first[finding.phase] == (dump.number, finding.record) else "inherited"

    def _judged(self, dump: RankDump, operation: Operation) -> RecordFinding:
        records = self.spread.together(dump, operation.record)
        empty = RecordFinding(operation.record, operation.index, self.phase(dump, operation), ranks=tuple(records))
        call = RankCall(self.spread, dump, operation, records)
        values: dict[str, ValueFinding] = {}
        try:
            for path in call.leaves[dump.number]:
                values[path] = call.found(path, "unjudged")
            for law in self._laws:
                for value in law.findings(call):
                    if _WORST.index(value.state) <= _WORST.index(values[value.path].state):
                        values[value.path] = value
            judged = [self._with_contents(call, value) for value in values.values()]
        except DumpError as error:
            judged = list(values.values())
            if not judged:
                return replace(empty, reason=str(error))
            judged[0] = replace(judged[0], state="unreadable", message=str(error))
        return replace(empty, values=tuple(judged))

    def _with_contents(self, call: RankCall, value: ValueFinding) -> ValueFinding:
        """A value of which no law speaks, with what its contents say of how it is spread."""
        if value.state != "unjudged" or value.message or not math.prod(value.shape):
            return value
        kinds = {row: call.alike(value.path, row.ranks) for row in self.spread.crossed(call.dump.number)}
        words = [_words(row, said, value.path) for row, said in kinds.items() if said != "unknown"]
        return replace(value, message=f"no law speaks of it: {', '.join(words) or 'other ranks have no such call'}")

    def phase(self, dump: RankDump, operation: Operation) -> Phase:
        """Which pass of the step a record belongs to; communication that no layer made belongs to what it is among."""
        phase = phase_of(operation)
        if phase == "forward" and not operation.is_cell and not dump.parents.get(operation.record):
            start, end = self._backwards[dump.number]
            if start < operation.index:
                return "backward" if operation.index < end else "optimizer"
        return phase

    @cached_property
    def _backwards(self) -> dict[int, tuple[float, float]]:
        """Places of the first and the last record of the backward, by ranks."""
        places_of_backward = {}
        for number, dump in self.step.ranks.items():
            places = [operation.index for operation in dump.operations if phase_of(operation) == "backward"]
            places_of_backward[number] = min(places, default=math.inf), max(places, default=math.inf)
        return places_of_backward


def _words(row: RankGroup, said: str, path: str) -> str:
    kind = {"equal": "R", "constant": "equal, and of one number"}.get(said)
    return f"{kind or ('S' if path.startswith('parameters.') else 'S or P')} over {row.name}"


class RankLaws(CallPlaces):
    """The calls of a step that are items of one rank's dump.

    Attributes:
        laws: of the step.
        dump: of the rank.
        step: the ranks.
    """

    def __init__(self, laws: StepLaws, dump: RankDump) -> None:
        self.laws, self.dump, self.step = laws, dump, laws.step

    def judged(self, operation: Operation) -> tuple[RecordFinding, Role]:
        """What is found of a call, and what it has to do with the broken laws of its step."""
        finding = self.laws.finding(self.dump, operation)
        return finding, self.laws.role(self.dump, finding)

    def _stacked(self, operation: Operation) -> Iterator[tuple[RankDump, str]]:
        """The call's record, and that of its forward."""
        yield self.dump, operation.record
        yield self.dump, forward_of(operation)


class LawsSession(RunSteps):
    """The steps of a run without a logical side, each read when it is asked for."""

    def __init__(self, steps: dict[Path, list[Path]], data_dirs: Sequence[Path]) -> None:
        super().__init__(steps, data_dirs)
        self._laws = cache(lambda folder: StepLaws(self.step(steps[folder][0])))

    def laws(self, path: Path) -> StepLaws:
        """The laws of the step that the dump at `path` is of."""
        return self._laws(self.folders[path])

    def rank(self, path: Path) -> RankLaws | None:
        """The calls that are items of the dump at `path`; None where another dump is of the same rank.

        Raises:
            DumpError: the dump cannot be read.
        """
        laws = self.laws(path)
        if path in laws.step.unreadable:
            raise laws.step.unreadable[path]
        for dump in laws.step.ranks.values():
            if dump.path == path:
                return RankLaws(laws, dump)
        return None
