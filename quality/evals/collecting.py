"""One debugger per run of a recipe, configured as a user would do it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def configuration(folder: Path, task: str = "tensor", **keys: Any) -> str:
    """A config.json beside `folder`, into which the run collects; `keys` are further keys of the file."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.parent / f"{folder.name}_config.json"
    level = {} if task == "grad_probe" else {"level": "mix"}
    mine = file.with_suffix(f".{os.getpid()}")  # ranks write it at the same time
    mine.write_text(json.dumps({"task": task, "dump_path": str(folder), **level, **keys}))
    return str(mine.replace(file))
