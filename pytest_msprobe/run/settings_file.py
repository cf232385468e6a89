"""The YAML file of --msprobe-config: its keys are `dump` and the names of options.

A compare.json, in which older tools are told what to compare, is such a file too: JSON is YAML.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.dump_format.text import shortened
from msprobe_collector.dump_format.yaml_files import YamlFileError, read_yaml
from pytest_msprobe.suites.option import Option

#: Keys of a compare.json and what they are here.
_COMPARED = {"npu_path": "dump", "bench_path": "golden"}
#: stack.json is read from beside the dump, and pytest prints each record with -v.
_WITHOUT_EFFECT = ("stack_path", "is_print_compare_log")
_OF_KERNELS = ("rank_id", "step_id", "common", "map_dict")


def read_settings_file(config: pytest.Config, options: Sequence[Option]) -> dict[str, Any]:
    """The values in the file by their keys, paths for `dump`; and as "" what messages call the file. Empty without one.

    Raises:
        pytest.UsageError: it cannot be read, or a key or the value of `dump` is wrong.
    """
    name: str = config.getoption("msprobe_config") or config.getini("msprobe_config")
    if not name:
        return {}
    path = Path(os.path.abspath(name)) if config.getoption("msprobe_config") else config.rootpath / name
    try:
        content = read_yaml(path) or {}
    except YamlFileError as error:
        raise pytest.UsageError(f"--msprobe-config={name}: {error}") from None
    if not isinstance(content, dict):
        raise pytest.UsageError(f"--msprobe-config={name}: expected keys and values, found {type(content).__name__}")
    content = _translated(content, name)
    known = ["dump", *(option.name for option in options)]
    for key in content:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise pytest.UsageError(f"--msprobe-config={name}: unknown key {shortened(key)}; {hint}")
    return {**content, "dump": _yaml_dumps(content.get("dump"), path), "": f"--msprobe-config={name}"}


def _translated(content: dict[str, Any], name: str) -> dict[str, Any]:
    """`content` with the keys of a compare.json under the names that they have here; its paths start where we do."""
    if not any(key in content for key in _COMPARED):
        return content
    found: dict[str, Any] = {}
    for key, value in content.items():
        if key in _OF_KERNELS:
            raise pytest.UsageError(
                f"--msprobe-config={name}: key {key!r} is for dumps of kernels, which nothing here compares"
            )
        if key in _COMPARED:
            if not isinstance(value, str) or not value:
                raise pytest.UsageError(
                    f"--msprobe-config={name}: key {key!r}: expected the path of a dump, found {shortened(value)}"
                )
            found[_COMPARED[key]] = os.path.abspath(value)
        elif key not in _WITHOUT_EFFECT:
            found[key] = value
    return found


def _yaml_dumps(value: Any, path: Path) -> list[Path]:
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise pytest.UsageError(
            f"--msprobe-config={path}: key 'dump': expected a path or a list of paths, found {shortened(value)}"
        )
    return [path.parent / name for name in names]
