"""One call that makes a training run repeatable."""

from __future__ import annotations

import os
import random
import sys

from msprobe_collector.pytorch.dropout_removal import remove_dropout, restore_dropout
from msprobe_collector.seed_arguments import check_seed_arguments


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seed every generator that a PyTorch script draws from: Python, NumPy if it is loaded, PyTorch on every device.

    Call it first, before the network is built. Equal seeds give equal weights and dropout masks; equal values besides
    need `mode`.

    Args:
        seed: 0 to 4294967295. PYTHONHASHSEED is set for child processes; this one keeps the hashes it started with.
        mode: have operators compute in a fixed order (`torch.use_deterministic_algorithms`, cuDNN and HCCL likewise);
            one that cannot raises RuntimeError where it is called.
        rm_dropout: let dropout layers and functions pass their input on. False gives them back; see `remove_dropout`.

    Raises:
        TypeError: `seed` is not an int, or a flag is not a bool.
        ValueError: `seed` is out of range.
    """
    check_seed_arguments(seed, mode=mode, rm_dropout=rm_dropout)
    import torch

    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    torch.manual_seed(seed)  # also of CUDA, and of torch_npu, which registers its own
    torch.use_deterministic_algorithms(mode)
    torch.backends.cudnn.deterministic = mode
    if mode:
        torch.backends.cudnn.benchmark = False
        # Read when the libraries start: cuBLAS, and HCCL on Ascend.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ["HCCL_DETERMINISTIC"] = "true"
    if rm_dropout:
        remove_dropout()
    else:
        restore_dropout()
