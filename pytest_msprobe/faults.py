"""What a framework or user code, such as a hook of a conftest.py, raised, as text for messages."""

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


def text_of(error: BaseException) -> str:
    """Type and message of an exception of a framework, in one line, without its C++ stack."""
    message = str(error).strip().partition("\n\n---")[0]
    lines = " ".join(line.strip() for line in message.splitlines() if line.strip(" -"))
    shown = lines if len(lines) <= 600 else f"{lines[:597]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__
