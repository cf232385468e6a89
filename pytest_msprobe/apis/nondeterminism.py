"""Which operations are documented to give other bytes in another run, and by how much."""

from __future__ import annotations

from typing import Literal

from msprobe_collector.dump_format import ApiName, Direction
from pytest_msprobe.apis.fact_table import facts

#: `sums`: the order of additions changes. `writes`: any of several values may be the last one written.
Kind = Literal["sums", "writes"]


def documented_difference(api: ApiName, framework: str, target: str, direction: Direction) -> Kind | None:
    """Why results of `api` on `target` (`cpu`, `cuda`, `ascend`) may differ between runs; None where they may not."""
    fact = facts("nondeterministic").of(api, framework)
    for line in fact.text.split("; ") if fact is not None else ():
        place, way, kind = line.split()
        if place in (target, "any") and way in (direction, "both"):
            return "writes" if kind == "writes" else "sums"
    return None
