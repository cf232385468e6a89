"""One call that makes a training run repeatable."""

from __future__ import annotations

import os
import random
import sys

from msprobe_collector.pytorch.dropout_removal import remove_dropout, restore_dropout

_MAX_SEED = 2**32 - 1


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
    _check(seed, mode=mode, rm_dropout=rm_dropout)
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


def _check(seed: object, **flags: object) -> None:
    if type(seed) is not int:
        raise TypeError(f"seed_all: seed: {seed!r} is not a whole number")
    if not 0 <= seed <= _MAX_SEED:
        raise ValueError(f"seed_all: seed: {seed} is not from 0 to {_MAX_SEED}")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"seed_all: {name}: {flag!r} is neither True nor False")
