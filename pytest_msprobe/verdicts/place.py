"""Where in a training step a record stands: what reports need to show it in its model and in its order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Side = Literal["both", "target", "golden"]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one record.

    Attributes:
        order: in the execution of its dump, from 0; -1 where that is unknown.
        cells: Cells or Modules that it ran in, outermost first: `bs.0.Block`, `bs.0.a.Attn`. A Cell's own record ends
            with its own name.
        rank, step: of its dump; None where the folders do not say.
        source: line of the user's script that made the call, `train.py:25, in forward: x = ...`; "" if unknown.
        side: of a comparison, which dumps hold the record.
        partner: of a comparison, the golden record; "" without one.
        partner_cells: Cells that the golden record ran in.
    """

    order: int = -1
    cells: tuple[str, ...] = ()
    rank: int | None = None
    step: int | None = None
    source: str = ""
    side: Side = "both"
    partner: str = ""
    partner_cells: tuple[str, ...] = ()
