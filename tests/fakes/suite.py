"""A suite that judges nothing but what a test tells it, for the modules of `run` and `workers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import Dump, Frame
from pytest_msprobe.suites.contract import Group, ItemRecord, Suite, SuiteError, SuiteReport
from pytest_msprobe.verdicts import OUTCOMES, Figure, Outcome, OutputRow, Status, StepPosition, Verdict, VerdictRow

BOTH = ("forward", "backward")


class FakeReport(SuiteReport):
    """Remembers what it gets; writing fails from the moment that `broken` is set."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, VerdictRow]] = []
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.broken: OSError | None = None
        self.sentence = ""

    def receive(self, name: str, row: VerdictRow) -> None:
        self.rows.append((name, row))

    def receive_call(self, name: str, rows: Sequence[VerdictRow]) -> None:
        if self.broken is not None:
            raise self.broken
        self.calls.append((name, tuple(row.part for row in rows)))

    def fault(self) -> str:
        return self.sentence


class FakeSuite(Suite):
    """Groups by file, as given; a file without any cannot be read."""

    name = "fake"
    title = "Fakes"
    item_noun = "fakes"
    figures = (Figure("max_abs", "Max abs", ".2e"),)

    def __init__(self, files: Mapping[Path, Sequence[Group]], *, costs: Mapping[str, float] | None = None) -> None:
        self._files = files
        self._costs = costs or {}
        self.made_report = FakeReport()

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(self._files)

    def groups(self, file: Path) -> Iterator[Group]:
        if not self._files[file]:
            raise SuiteError(f"{file}: is broken")
        yield from self._files[file]

    def judge(self, record: ItemRecord) -> Verdict:
        return Verdict("pass")

    def headline(self, record: ItemRecord) -> str:
        return record.call

    def attachment_of_unjudged(self, record: ItemRecord, status: Status, message: str) -> Mapping[str, Any]:
        return {"unrun": message}

    def place(self, record: ItemRecord) -> StepPosition:
        return StepPosition()

    def frames(self, record: ItemRecord) -> Sequence[Frame]:
        return ()

    def dumps(self) -> Iterator[Dump]:
        return iter(())

    def cost(self, file: Path, group: Group) -> float:
        return self._costs.get(group.call, 1.0)

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        return self.made_report


def group(call: str, parts: tuple[str, ...] = BOTH, *, scope: str | None = None) -> Group:
    """A group named after its call."""
    return Group(call if scope is None else scope, call, parts)


def row(
    call: str = "Mint.add.0",
    part: str = "forward",
    status: Status = "pass",
    *,
    outcome: Outcome | None = None,
    selected: tuple[str, ...] = ("forward",),
    dump: str = "/d/dump.json",
    message: str = "",
) -> VerdictRow:
    """A row with one output."""
    return VerdictRow(
        node_id=f"dump.json::{call}::{part}",
        dump=dump,
        call=call,
        part=part,
        recorded=BOTH,
        selected=selected,
        status=status,
        outcome=outcome or OUTCOMES[status],
        message=message,
        outputs=(OutputRow("output.0", "Float64", "Float32", (2,), status, figures={"max_abs": 0.5}),),
        suite="fake",
    )
