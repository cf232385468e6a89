"""Names of a dump in node ids."""

from __future__ import annotations

import re
from pathlib import Path

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")


def escape(name: str) -> str:
    """`name` in characters that a node id can hold: `::`, `[`, `@`, spaces and others become %XX."""
    return _UNSAFE.sub(
        lambda match: "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogatepass")), name
    )


def file_id(path: Path, root: Path) -> str:
    """Id of a file or folder: relative to rootdir inside it, else absolute; pytest's own would be empty outside."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
