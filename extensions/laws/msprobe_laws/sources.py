"""The line of the script that stands behind a call."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType

import msprobe_collector

_OURS = (str(Path(__file__).parent), str(Path(msprobe_collector.__file__).parent), "<frozen")


def source_of(frame: FrameType | None) -> str:
    """`train.py:25, in main: optimizer.step()`: the innermost line that is neither a framework's nor ours."""
    frameworks = (sys.modules[name] for name in ("torch", "mindspore") if name in sys.modules)
    away = (*_OURS, *(str(Path(str(module.__file__)).parent) for module in frameworks))
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(away) and not file.endswith("contextlib.py"):
            text = linecache.getline(file, frame.f_lineno).strip()
            return f"{Path(file).name}:{frame.f_lineno}, in {frame.f_code.co_name}" + (f": {text[:80]}" if text else "")
        frame = frame.f_back
    return ""
