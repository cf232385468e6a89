"""How reports tell what user code, such as a hook of a conftest.py, did wrong."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))


def place_of(error: BaseException) -> str:
    """`conftest.py:12`: the deepest line outside installed packages that an exception passed, or "" without one."""
    # "<": generated code, as that of dataclasses.
    not_ours = (*_INSTALLED, "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(not_ours)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
