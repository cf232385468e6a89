from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.pytorch import PrecisionDebugger


@pytest.fixture
def make_debugger(tmp_path: Path):
    """make_debugger(level="L1", task="statistics", **section) -> debugger writing to tmp_path / "dump"."""

    def make(
        *, level: str | None = "L1", task: str = "statistics", common: dict[str, Any] | None = None, **section: Any
    ):
        forget()
        configuration = {"task": task, "dump_path": str(tmp_path / "dump"), **(common or {}), task: section}
        if level:
            configuration["level"] = level
        path = tmp_path / "config.json"
        path.write_text(json.dumps(configuration))
        return PrecisionDebugger(str(path))

    yield make
    forget()


def forget() -> None:
    """End the debugger of this process."""
    if PrecisionDebugger._the_one is not None:
        PrecisionDebugger._the_one._at_exit()
    PrecisionDebugger._the_one = None


@pytest.fixture
def step_folder(tmp_path: Path):
    """The folder of step n, of the only process."""

    def find(step: int = 0) -> Path:
        (folder,) = (tmp_path / "dump" / f"step{step}").iterdir()
        return folder

    return find


@pytest.fixture
def records(step_folder):
    """The `data` of step n's dump.json (or another file), by name."""

    def read(step: int = 0, file: str = "dump.json") -> dict[str, Any]:
        return json.loads((step_folder(step) / file).read_text())["data"]

    return read
