"""The autocast under which a call runs: it casts operands inside the call, where no argument shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from msprobe_collector.recording.inner_tensors import inner_tensors

#: Whether autocast is on for any type of device; asked for at every call, so it has to be cheap.
is_any_on: Callable[[], bool] = torch._C._is_any_autocast_enabled


def autocast_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """`{"device_type": "cpu", "dtype": torch.bfloat16}` where autocast is on for the tensors of a call, else {}."""
    if not is_any_on():
        return {}
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    tensors = tensors or [tensor for _, tensor in inner_tensors(arguments, keywords, torch.Tensor)]
    device_type = tensors[0].device.type if tensors else ""
    if not tensors or not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return {}
    return {"device_type": device_type, "dtype": torch.get_autocast_dtype(device_type)}
