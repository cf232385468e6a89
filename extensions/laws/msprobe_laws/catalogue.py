"""All laws: what each says, who says so, and what rounding may do."""

from __future__ import annotations

from typing import Any

from msprobe_laws import signals, updates
from msprobe_laws.law import Law
from msprobe_laws.training import RANKS_DRAW, REPLICAS, STATEMENTS, Statement

_CLASSES: tuple[type[Law[Any]], ...] = (
    *updates.OF_FORMULA,
    *updates.OF_UPDATE,
    updates.StateContinues,
    *signals.OF_SIGNALS,
)
_CHECKED = [Statement(law.name, law.sentence, law.source, law.tolerance) for law in _CLASSES]
#: By name, those on updates first.
LAWS: dict[str, Statement] = {law.name: law for law in (*_CHECKED, *STATEMENTS)}
#: Those that compare ranks, which are checked from the files of all of them.
OF_RANKS = (REPLICAS, RANKS_DRAW)
