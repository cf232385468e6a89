"""Ascend NPUs under PyTorch: all that is asked of torch_npu. It has run against a stand-in only, never on an NPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

from pytest_msprobe.engines.loading import load_framework
from pytest_msprobe.engines.protocol import Unsupported


def use_npu(torch: Any, device: str) -> None:
    """Make `device` (`npu`, `npu:1`) usable: importing torch_npu adds it to PyTorch.

    Kernels run synchronously, so that an error belongs to its own call.

    Raises:
        ImportError: torch_npu is missing, or does not fit the installed PyTorch.
        Unsupported: there is no NPU.
    """
    os.environ.setdefault("ASCEND_LAUNCH_BLOCKING", "1")
    load_framework("torch_npu")
    if not torch.npu.is_available():
        raise Unsupported("torch_npu finds no NPU")
    if ":" in device:
        torch.npu.set_device(device)


def npu_function(name: str) -> Callable[..., object]:
    """The function `name` of torch_npu, one of those in apis/facts/torch_calls/npu.txt.

    Raises:
        Unsupported: the installed torch_npu lacks it.
    """
    found = getattr(load_framework("torch_npu"), name, None)
    if found is None:
        raise Unsupported(f"the installed torch_npu has no {name}")
    return cast("Callable[..., object]", found)
