"""Names of a dump in node ids."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")


def escape(name: str) -> str:
    """`name` in characters that a node id can hold: `::`, `[`, `@`, spaces and others become %XX."""
    return _UNSAFE.sub(
        lambda match: "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogatepass")), name
    )
