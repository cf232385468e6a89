"""What the collector asks of this package, and how the environment asks for it: see `msprobe_collector.extensions`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

#: Anything but "" and "0" has the laws checked; a path names the folder that findings go to.
ENVIRONMENT = "MSPROBE_LAWS"
#: Names of laws to leave out, with commas between them.
SKIP = "MSPROBE_LAWS_SKIP"
#: A JSON object: why a finding of a law is meant, by the name of the law.
MEANT = "MSPROBE_LAWS_MEANT"
#: Key of the same object in a run.json.
MEANT_KEY = "laws_meant"
DEFAULT_FOLDER = "msprobe_laws"
_MOST_BYTES = 1 << 24


def is_wanted() -> bool:
    """Return whether MSPROBE_LAWS asks for a check."""
    return os.environ.get(ENVIRONMENT, "") not in ("", "0")


def chosen_folder() -> Path:
    """Return the folder that MSPROBE_LAWS names; a relative one is below the current folder of the script."""
    value = os.environ.get(ENVIRONMENT, "")
    return Path(DEFAULT_FOLDER if value in ("", "0", "1", "true", "yes", "on") else value).absolute()


def left_out() -> list[str]:
    """Return the laws that MSPROBE_LAWS_SKIP names."""
    return [name.strip() for name in os.environ.get(SKIP, "").split(",") if name.strip()]


def meant(folder: Path) -> dict[str, str]:
    """Return why findings of laws are meant, as MSPROBE_LAWS_MEANT and the run.json of `folder` say."""
    text = os.environ.get(MEANT, "")
    try:
        declared = _reasons(json.loads(text)) if text else {}
    except ValueError:
        sys.stderr.write(f"msprobe: {MEANT} is no JSON object, and is not used\n")
        declared = {}
    return {**meant_in(folder / "run.json"), **declared}


def meant_in(path: Path) -> dict[str, str]:
    """Return the entry `laws_meant` of a run.json; nothing where there is none."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return {}
        return _reasons(json.loads(path.read_text("utf-8"))[MEANT_KEY])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _reasons(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(value)
    return {str(law): str(reason) for law, reason in value.items()}


def start(framework: str) -> None:
    """Check the laws of a training with `framework` from now on. A failure is one line, and the training goes on."""
    try:
        import_module(f"msprobe_laws.{framework}.watch").watch_laws()
    except Exception as error:
        sys.stderr.write(f"msprobe: laws of {framework} are not checked: {type(error).__name__}: {error}\n")


def optimizer_leaves(framework: str, optimizer: Any, frame: FrameType | None) -> Mapping[str, object]:
    """Return the leaf `law` of an optimizer's record: which formula its step belongs to."""
    return {"law": import_module(f"msprobe_laws.{framework}.formulas").declared(optimizer, frame)}
