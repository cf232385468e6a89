"""What the collector writes of each value of a run of the catalogue; without a framework."""

from __future__ import annotations

import json
from pathlib import Path

TASKS = ("tensor", "statistics", "sketch")


def arguments(task: str, place: Path, rank: int) -> dict[str, str]:
    """The arguments of PrecisionDebugger; what only a file can say is written below `place`."""
    if task == "tensor":
        return {"dump_path": str(place), "level": "mix", "task": task}
    file = place / f"config{rank}.json"
    section = {"summary_mode": task}
    config = {"task": "statistics", "level": "mix", "dump_path": str(place), "statistics": section}
    file.write_text(json.dumps(config), encoding="utf-8")
    return {"config_path": str(file)}
