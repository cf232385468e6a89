"""Which dump.json files a run was pointed at."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.dump_format.kernel_dumps import NOT_READ, holds_kernel_dump
from msprobe_collector.dump_format.text import shortened


def find_dumps(config: pytest.Config, yaml_values: dict[str, Any]) -> tuple[tuple[Path, ...], bool]:
    """The dumps that command line, YAML or ini name, the first of them that names any; and whether the ini does not.

    A project whose ini file names dumps has tests of its own beside them.

    Raises:
        pytest.UsageError: a path does not exist or holds no dump.
    """
    named = config.getoption("msprobe_dump")
    in_yaml = yaml_values.get("dump")
    given = (
        [config.invocation_params.dir / name for name in named] if named else in_yaml or config.getini("msprobe_dump")
    )
    is_in_ini = not named and not (in_yaml and config.getoption("msprobe_config"))
    found: dict[Path, None] = {}
    for path in given:
        found.update(dict.fromkeys(_dump_files(Path(os.path.abspath(path)))))
    return tuple(found), not is_in_ini


def _dump_files(path: Path) -> list[Path]:
    try:
        is_file = path.is_file()
    except OSError as error:  # a part of the name is too long
        raise pytest.UsageError(f"--msprobe-dump={shortened(str(path))}: {error.strerror}") from None
    if is_file:
        return [path]
    if not path.is_dir():
        raise pytest.UsageError(f"--msprobe-dump={path}: there is no such file or folder")
    # A tensor folder can hold 100,000 files; it never holds a dump.json.
    found = [Path(folder) / "dump.json" for folder, _, files in _walk(path) if "dump.json" in files]
    if not found:
        why = NOT_READ if holds_kernel_dump(path) else "holds no dump.json; give a dump, step or rank folder"
        raise pytest.UsageError(f"--msprobe-dump={path}: {why}")
    return sorted(found, key=_natural)


def _walk(path: Path) -> Any:
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if name != "dump_tensor_data"]
        yield folder, folders, files


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key that puts step2 before step10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path))]
