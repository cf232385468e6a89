"""Fixtures of both collectors; a conftest.py that imports them has the fixture `debugger_type`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["make_debugger", "records", "step_folder"]


@pytest.fixture
def make_debugger(debugger_type: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """make_debugger(level="L1", task="statistics", **section) -> debugger writing to tmp_path / "dump".

    Another call ends the debugger of the one before.
    """

    def make(
        *, level: str | None = "L1", task: str = "statistics", common: dict[str, Any] | None = None, **section: Any
    ) -> Any:
        forget(debugger_type)
        configuration = {"task": task, "dump_path": str(tmp_path / "dump"), **(common or {}), task: section}
        if level:
            configuration["level"] = level
        path = tmp_path / "config.json"
        path.write_text(json.dumps(configuration))
        return debugger_type(str(path))

    yield make
    forget(debugger_type)


def forget(debugger_type: Any) -> None:
    """End the debugger of this process."""
    if debugger_type._instance is not None:
        debugger_type._instance._at_exit()
    debugger_type._instance = None


@contextmanager
def collected(debugger_type: Any, folder: Path, **keys: Any) -> Iterator[Any]:
    """A debugger that writes tensors of one step at level mix, unless `keys` of config.json say otherwise.

    It is ended and forgotten at the end.
    """
    folder.mkdir(parents=True)
    path = folder / "config.json"
    path.write_text(json.dumps({"task": "tensor", "level": "mix", "step": [0], **keys, "dump_path": str(folder)}))
    debugger_type._instance = None
    try:
        yield debugger_type(path)
    finally:
        forget(debugger_type)


@pytest.fixture
def step_folder(tmp_path: Path) -> Callable[..., Path]:
    """The folder of step n, of the only process."""

    def find(step: int = 0) -> Path:
        (folder,) = (tmp_path / "dump" / f"step{step}").iterdir()
        return folder

    return find


@pytest.fixture
def records(step_folder: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """The `data` of step n's dump.json (or another file), by name."""

    def read(step: int = 0, file: str = "dump.json") -> dict[str, Any]:
        data: dict[str, Any] = json.loads((step_folder(step) / file).read_text())["data"]
        return data

    return read
