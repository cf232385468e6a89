"""The YAML file of --msprobe-config: its keys are those of the options, `dump` and `standards`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pytest

from pytest_msprobe.precheck.standard_choice import read_choice


def settings_file(config: pytest.Config) -> str:
    """The file as the user named it; "" without one."""
    name: str = config.getoption("msprobe_config") or config.getini("msprobe_config")
    return name


def read_settings_file(config: pytest.Config, options: Sequence[str]) -> dict[str, Any]:
    """The values in the file by their keys: texts and numbers for `options`, paths for `dump`, and a StandardChoice.

    Raises:
        pytest.UsageError: it cannot be read, or a key or the value of `dump` or `standards` is wrong.
    """
    name = settings_file(config)
    if not name:
        return {}
    import yaml

    path = Path(os.path.abspath(name)) if config.getoption("msprobe_config") else config.rootpath / name
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise pytest.UsageError(f"--msprobe-config={name}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"--msprobe-config={name}: is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise pytest.UsageError(f"--msprobe-config={name}: expected keys and values, found {type(content).__name__}")
    known = ["dump", "standards", *options]
    for key in content:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise pytest.UsageError(f"--msprobe-config={name}: unknown key {key!r}; {hint}")
    try:
        standards = read_choice(content.get("standards"), f"--msprobe-config={name}")
    except ValueError as error:
        raise pytest.UsageError(f"--msprobe-config={name}: {error}") from None
    return {**content, "dump": _yaml_dumps(content.get("dump"), path), "standards": standards}


def _yaml_dumps(value: Any, path: Path) -> list[Path]:
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise pytest.UsageError(
            f"--msprobe-config={path}: key 'dump': expected a path or a list of paths, found {value!r}"
        )
    return [path.parent / name for name in names]
