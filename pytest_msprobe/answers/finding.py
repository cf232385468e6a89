"""What is wrong, what was not judged, and what to do next: as data. `words` says it."""

from __future__ import annotations

import msgspec


class ArgumentDifference(msgspec.Struct, frozen=True):
    """An argument or a setting that the two runs have otherwise; "" on the side that does not have it."""

    name: str
    target: str = ""
    golden: str = ""
