"""The line of the script that stands behind a call."""

from __future__ import annotations

import linecache
from pathlib import Path
from types import FrameType

import torch

_OURS = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)


def source_of(frame: FrameType | None) -> str:
    """`train.py:25, in main: optimizer.step()`: the innermost line that is neither PyTorch's nor ours."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, _TORCH, "<frozen")) and not file.endswith("contextlib.py"):
            text = linecache.getline(file, frame.f_lineno).strip()
            return f"{Path(file).name}:{frame.f_lineno}, in {frame.f_code.co_name}" + (f": {text[:80]}" if text else "")
        frame = frame.f_back
    return ""
