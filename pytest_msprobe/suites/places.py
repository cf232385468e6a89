"""Where records of a dump stand in their training step."""

from __future__ import annotations

from dataclasses import replace

from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.operation import GRADIENTS, Operation
from msprobe_collector.dump_format.slot import Slot
from msprobe_collector.dump_format.text import shown
from pytest_msprobe.verdicts import Place


def place_in(dump: Dump, record: str, forward: str = "") -> Place:
    """Where `record` stands in its step. What a backward does not say is taken from its `forward`."""
    slot = Slot.of(dump.path)
    frame = dump.stacks.user_frame(record) or dump.stacks.user_frame(forward)
    return Place(
        order=dump.orders.get(record, -1),
        cells=cells_of(dump, record, forward),
        rank=slot.rank,
        step=slot.step,
        source="" if frame is None else str(frame),
    )


def cells_of(dump: Dump, record: str, forward: str = "") -> tuple[str, ...]:
    """The Cells that `record` ran in, outermost first, without the word `Cell` and their call numbers."""
    own = Operation.of(record, 0)
    known = record if record in dump.parents else forward
    if own.phase == GRADIENTS and dump.parents.get(record) is None:  # written when the step ends, outside of any Cell
        known = f"{own.name}.forward.{own.number or 0}"
    chain = [*dump.ancestors(known), *([record] if own.is_cell else [])]
    return tuple(shown(Operation.of(cell, 0).name.partition(".")[2] or cell) for cell in chain)


def of_step(place: Place) -> Place:
    """The place of something that is about the whole step of `place`: behind its last record."""
    return replace(place, order=-1, cells=(), source="")
