"""A stand-in for a CUDA device on a machine without: `cuda` is another name of the CPU. For `pytest -p fakes.cuda`.

With CUDA_IS_OFF=1 it computes from values that are off by a millionth.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from pytest_msprobe.engines import selection


def _to(original: Any) -> Any:
    @functools.wraps(original)
    def to(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        is_moved = any(isinstance(item, str) and item.startswith("cuda") for item in arguments)
        moved = original(tensor, *["cpu" if isinstance(item, str) else item for item in arguments], **keywords)
        is_off = is_moved and moved.is_floating_point() and os.environ.get("CUDA_IS_OFF")
        return moved * (1 + 1e-6) if is_off else moved

    return to


torch.Tensor.to = _to(torch.Tensor.to)  # type: ignore[method-assign]
selection.has_cuda = lambda: True  # type: ignore[assignment]
