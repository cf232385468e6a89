"""All statistics of a tensor in one pass over its elements: a kernel of Triton, where that is installed."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

from msprobe_collector import logger

#: Numbers that the kernel leaves of a part: minimum, maximum, sum, norm, counts of NaN, not finite, +Inf.
WIDTH = 7
#: Parts of one tensor at most, which keep every processor of a device busy, and elements of a block.
_MOST_PARTS, _BLOCK = 256, 1024
#: What the kernel can load, whose numbers float64 holds exactly.
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_INTEGERS = {torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32}
#: Types of devices for which Triton compiles float64, and those with which it has failed.
_DEVICES = {"cuda", "xpu"}
_failed: set[str] = set()


def reduced(flat: Any) -> Any:
    """`WIDTH` numbers of each part of a tensor of one dimension, float64; None where there is no kernel."""
    kind, dtype = flat.device.type, flat.dtype
    if kind not in _DEVICES or kind in _failed or not (dtype in _FLOATS or dtype in _INTEGERS):
        return None
    parts = min(_MOST_PARTS, -(-flat.numel() // _BLOCK))
    flat = flat.contiguous()
    numbers = torch.empty((parts, WIDTH), dtype=torch.float64, device=flat.device)
    try:
        with nullcontext() if flat.is_cpu else torch.get_device_module(flat.device).device(flat.device):
            _kernel()[(parts,)](flat.view(torch.uint8) if dtype is torch.bool else flat, numbers, flat.numel(), _BLOCK)
    except ImportError:
        _failed.add(kind)
        return None
    except Exception as error:  # Triton finds no compiler for C, or does not know the device
        _failed.add(kind)
        logger.warning("statistics are computed without Triton, which is slower: %s", error)
        return None
    return numbers


def joined(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The numbers of whole values, (values, `WIDTH`), from those of their parts, (values, parts, `WIDTH`)."""
    with np.errstate(all="ignore"):
        least, greatest = rows[:, :, 0].min(1), rows[:, :, 1].max(1)
        norms = np.sqrt(np.square(rows[:, :, 3]).sum(1))
        return np.stack([least, greatest, rows[:, :, 2].sum(1), norms, *rows[:, :, 4:].sum(1).T], axis=1)


@cache
def _kernel() -> Any:
    return import_module("msprobe_collector.pytorch.triton_kernel").reduce
