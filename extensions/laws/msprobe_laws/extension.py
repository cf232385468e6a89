"""What the collector asks of this package, and how the environment asks for it: see `msprobe_collector.extensions`."""

from __future__ import annotations

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
DEFAULT_FOLDER = "msprobe_laws"


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


def start(framework: str) -> None:
    """Check the laws of a training with `framework` from now on. A failure is one line, and the training goes on."""
    try:
        import_module(f"msprobe_laws.{framework}.watch").watch_laws()
    except Exception as error:
        sys.stderr.write(f"msprobe: laws of {framework} are not checked: {type(error).__name__}: {error}\n")


def optimizer_leaves(framework: str, optimizer: Any, frame: FrameType | None) -> Mapping[str, object]:
    """Return the leaf `law` of an optimizer's record: which formula its step belongs to."""
    return {"law": import_module(f"msprobe_laws.{framework}.formulas").declared(optimizer, frame)}
