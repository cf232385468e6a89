"""One call that makes a training run repeatable."""

from __future__ import annotations

import os
import random

from msprobe_collector.mindspore.dropout_removal import remove_dropout, restore_dropout
from msprobe_collector.seed_arguments import check_seed_arguments


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seed every generator that a MindSpore script draws from: Python, NumPy, operators, data sets and mint.

    Call it first, before the network is built. Equal seeds give equal weights, data order and dropout masks; equal
    values besides need `mode`.

    Args:
        seed: 0 to 4294967295. PYTHONHASHSEED is set for child processes; this one keeps the hashes it started with.
        mode: have operators and communication compute in a fixed order (`mindspore.set_deterministic`, slower). Switch
            it on once: MindSpore refuses to have it switched again.
        rm_dropout: let dropout layers and functions pass their input on. False gives them back; see `remove_dropout`.

    Raises:
        TypeError: `seed` is not an int, or a flag is not a bool.
        ValueError: `seed` is out of range.
        RuntimeError: by MindSpore: deterministic computing was on and cannot be switched off.
    """
    check_seed_arguments(seed, mode=mode, rm_dropout=rm_dropout)
    import mindspore

    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    mindspore.set_seed(seed)
    # set_seed leaves out the generator of mint's random functions (seen on 2.10).
    mindspore.manual_seed(seed)
    if mode != (mindspore.get_context("deterministic") == "ON"):
        mindspore.set_deterministic(mode)
    if rm_dropout:
        remove_dropout()
    else:
        restore_dropout()
