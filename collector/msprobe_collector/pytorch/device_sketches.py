"""Sketches that PyTorch computes where a tensor is, and that come to the host later."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from msprobe_collector.dump_format.sketches import Arithmetic, Tables, memory_order, plan_of
from msprobe_collector.dump_format.writing.device_values import SHIFT

#: Elements that are multiplied at a time.
_BLOCK = 1 << 24
#: Devices that do not compute in float64.
NARROW = frozenset({"mps", "npu"})


@cache
def _arithmetic(device: Any, dtype: Any) -> Arithmetic:
    return Arithmetic(
        tables=Tables(lambda table: torch.from_numpy(table).to(device, dtype), scale=2.0**-SHIFT),
        # Elements that are not finite count as 0.
        raised=lambda part: torch.nan_to_num(part.to(dtype), 0.0, 0.0, 0.0),
        weighted=lambda counters, table: (counters * table).sum(1),
        joined=torch.cat,
        block=_BLOCK,
    )


def sketch_on_device(tensor: Any) -> Any:
    """The 64 numbers of a tensor with elements, times 2**-32, on its device; nothing waits for it.

    Computed in float32 where all its numbers are exact there, else in float64.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg()
    is_wide = tensor.dtype in (torch.float64, torch.int32, torch.int64)
    # A script may have allowed products of float32 to lose digits.
    is_wide = is_wide or (tensor.is_cuda and torch.backends.cuda.matmul.allow_tf32)
    dtype = torch.float64 if is_wide and tensor.device.type not in NARROW else torch.float32
    order = memory_order(tensor.stride())
    plan = plan_of(tuple(tensor.shape), order)
    flat = tensor.permute(order).reshape(-1)
    for rows, length, padded, columns in plan.pads:
        flat = torch.nn.functional.pad(flat.reshape(rows, length, columns), (0, 0, 0, padded - length)).reshape(-1)
    with torch.autocast(flat.device.type, enabled=False):
        return _arithmetic(flat.device, dtype).fold(flat, plan)
