"""What a difference does in each Cell or Module of a model: whether it comes in, arises inside, and is passed on.

A Cell is its calls: it has a fault of its own where one of them has, or, where the dump holds none of them, where its
inputs agree and its outputs do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import filterfalse
from typing import Any, NamedTuple

import msgspec

from msprobe_collector.dump_format.records import GRADIENTS, Operation, is_cell_record
from pytest_msprobe.suites.comparison.accounting.account import Account
from pytest_msprobe.suites.comparison.operations import OperationComparison
from pytest_msprobe.verdicts import VerdictRow, Wire

#: The property of a row that says it, and the key of what a row must say for it.
LEVEL, CELL = "level", "cell"
_BORN = "arises inside"
_PARAMETERS = "parameters"


class CellFacts(Wire, msgspec.Struct, frozen=True):
    """What the values of a Cell alone say, in builtin types.

    Attributes:
        inherits: whether something that it got differs; parameters are inside of it.
        passes_on: whether something that it gave differs.
        is_known: whether everything that it got could be compared.
        is_accounted: whether its calls are accounted for, so that they say what arose inside.
    """

    inherits: bool
    passes_on: bool
    is_known: bool = True
    is_accounted: bool = False

    @property
    def arises(self) -> bool:
        """Whether inputs agree and outputs do not."""
        return self.is_known and not self.inherits and self.passes_on

    @property
    def level(self) -> str:
        """The same in words, "" where nothing differs; see `CellDifference.level`."""
        return _level(is_born=self.arises, inherits=self.inherits, passes_on=self.passes_on)


@dataclass(frozen=True, slots=True)
class CellDifference:
    """What a difference does in one Cell, in one direction.

    Attributes:
        inherits, passes_on: as in `CellFacts`.
        born: records inside at whose outputs, or in whose values, a difference begins; the Cell's own record where its
            calls do not say.
        is_rounding: whether its difference arises inside although no call is at fault.
    """

    inherits: bool
    passes_on: bool
    born: tuple[str, ...] = ()
    is_rounding: bool = False

    @property
    def level(self) -> str:
        """`arises inside` or `inherited`, and `passed on` where the outputs differ; "" where nothing differs."""
        otherwise = f"{_BORN} by rounding" if self.is_rounding else ""
        return _level(otherwise, is_born=bool(self.born), inherits=self.inherits, passes_on=self.passes_on)


class DifferenceOrigin(NamedTuple):
    """Where a difference begins.

    Attributes:
        record, phase: of the operation.
        cells: that it ran in, outermost first, its own where it is one.
        content: of a value that differs before the operation, on both sides: a Cell that gets it inherits it.
    """

    record: str
    phase: str
    cells: tuple[str, ...]
    content: tuple[str, str] | None = None


class _Cell(NamedTuple):
    order: int
    origin: DifferenceOrigin
    facts: CellFacts
    inputs: frozenset[tuple[str, str]]


@dataclass(slots=True)
class CellDifferences:
    """Takes the rows of one dump in any order, and says of every Cell what a difference does in it."""

    _cells: list[_Cell] = field(default_factory=list)
    _origins: list[DifferenceOrigin] = field(default_factory=list)
    _differing: set[str] = field(default_factory=set)
    _levels: dict[str, tuple[tuple[str, str], str]] = field(default_factory=dict)

    def add(self, row: VerdictRow) -> None:
        """Take one row, with its attachment."""
        attachment = row.attachment or {}
        cells = row.place.cells if row.place is not None else ()
        if "summary" not in attachment or not cells:
            return
        summary = attachment["summary"]
        operation = Operation.of(summary["record"], summary["order"])
        if CELL in attachment:
            facts = CellFacts.from_wire(attachment[CELL])
            inputs = _differing_inputs(attachment.get("account"))
            origin = DifferenceOrigin(operation.record, operation.phase, cells)
            self._cells.append(_Cell(operation.index, origin, facts, inputs))
            self._levels[operation.record] = (row.call, row.part), str(dict(row.properties).get(LEVEL, ""))
        elif attachment.get("account", {}).get("basis") != "tensors":
            # By distances alone: a call whose inputs agree is where a difference begins.
            if summary["first"] and operation.phase == "forward":
                self._differing.add(operation.call)
            if summary["is_origin"]:
                self._origins.append(DifferenceOrigin(operation.record, operation.phase, cells))

    def of(self, faults: Iterable[DifferenceOrigin] = ()) -> dict[str, CellDifference]:
        """Differences by record of the Cell, in the order of execution; Cells where nothing differs are left out."""
        self._cells.sort(key=lambda cell: cell.order)
        forwards = {cell.origin.cells: cell.facts for cell in self._cells if cell.origin.phase == "forward"}
        layers = (cell for cell in self._cells if cell.facts.arises and not cell.facts.is_accounted)
        born_in = [cell.origin for cell in layers if not _is_of_forward(cell, forwards)]
        inside: dict[tuple[str, tuple[str, ...]], list[DifferenceOrigin]] = {}
        for origin in (*faults, *filter(self._is_origin, self._origins), *born_in):
            for depth in range(1, len(origin.cells) + 1):
                inside.setdefault((origin.phase, origin.cells[:depth]), []).append(origin)
        differences = {}
        for cell in self._cells:
            record, phase, cells, _ = cell.origin
            born = [origin.record for origin in inside.get((phase, cells), ()) if origin.content not in cell.inputs]
            # Where a call inside is known, the Cells around it say no more.
            inner = [*filterfalse(is_cell_record, dict.fromkeys(born))]
            # What a backward takes from its forward is inherited as well.
            inherits = cell.facts.inherits or (cell.facts.arises and _is_of_forward(cell, forwards))
            is_rounding = cell.facts.arises and cell.facts.is_accounted and not (born or inherits)
            difference = CellDifference(inherits, cell.facts.passes_on, tuple(inner or born[-1:]), is_rounding)
            if difference.level:
                differences[record] = difference
        return differences

    def _is_origin(self, origin: DifferenceOrigin) -> bool:
        """Whether the forward of a call does not differ already."""
        return origin.phase == "forward" or Operation.of(origin.record, 0).call not in self._differing

    def changed(
        self, faults: Iterable[DifferenceOrigin] = (), *, only_born: bool = False
    ) -> dict[tuple[str, str], str]:
        """(call, part) of the rows that say less than all rows together, with the words that they should have;
        where `only_born`, not those that then would say that nothing arose inside.
        """
        levels = {}
        for record, difference in self.of(faults).items():
            key, level = self._levels[record]
            if difference.level != level and (difference.born or not only_born):
                levels[key] = difference.level
        return levels


def cell_facts(compared: OperationComparison, account: Account | None = None) -> CellFacts | None:
    """What the values of a Cell say, None for anything else; where the `account` is made from tensors, it says better
    than their verdicts which of them differ.
    """
    operation = compared.operation
    if not operation.is_cell or operation.phase == GRADIENTS or compared.partner is None:
        return None
    beyond, is_accounted = {}, False
    if account is not None and account.basis == "tensors":
        beyond = {key.path: key.is_beyond for key in account.keys}
        is_accounted = account.kind == "contained"
    inherits = passes_on = False
    is_known = True
    for value in compared.values:
        if value.path.partition(".")[0] == _PARAMETERS:
            continue
        if not value.is_output and (value.status == "unreadable" or value.is_lone):
            is_known = False
        differs = beyond.get(value.path, value.status == "error")
        inherits |= differs and not value.is_output
        passes_on |= differs and value.is_output
    return CellFacts(inherits, passes_on, is_known, is_accounted)


def _level(otherwise: str = "", *, is_born: bool, inherits: bool, passes_on: bool) -> str:
    origin = "inherited" if inherits else otherwise
    origin = _BORN if is_born else origin
    return ", ".join(filter(None, [origin, "passed on" if passes_on else ""]))


def _is_of_forward(cell: _Cell, forwards: Mapping[tuple[str, ...], CellFacts]) -> bool:
    """Whether a backward may have its difference from what its forward kept."""
    forward = forwards.get(cell.origin.cells) if cell.origin.phase == "backward" else None
    return forward is not None and (forward.inherits or forward.passes_on)


def _differing_inputs(account: Mapping[str, Any] | None) -> frozenset[tuple[str, str]]:
    if account is None:
        return frozenset()
    keys = Account.from_wire(account).keys
    return frozenset((key.target, key.golden) for key in keys if key.differs and not key.path.startswith(_PARAMETERS))
