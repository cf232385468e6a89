"""Importing a framework: a million objects that stay to the end, and threads that wait for work."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Any

from pytest_msprobe.engines.time_limit import not_counted


def load_framework(name: str) -> Any:
    """The module `name`, imported without garbage collection, with all present objects excluded from it afterwards.

    Hardly anything that an import makes is garbage: collecting takes a tenth of the import of PyTorch, and each later
    full collection would walk over PyTorch's and MindSpore's modules again, 0.1 s a time. One collection of what is new
    must be, though: among the garbage are tracebacks, whose frames lead to the frames that call this function, and
    would keep what is in them, all tensors of the first API call, to the end. No time limit counts.

    Raises:
        ImportError: it is not installed, or not usable here.
    """
    if name in sys.modules:
        return sys.modules[name]
    # Idle threads of an OpenMP runtime spin and take the cores from other work: a seventh of the processor time of a
    # run with small tensors, and MindSpore 2.5 times slower beside PyTorch, which brings a runtime of its own. Read
    # when the runtime loads; a user's own value stays.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with not_counted():
            module = importlib.import_module(name)
    finally:
        if is_collecting:
            gc.enable()
    gc.collect(0)
    gc.freeze()
    return module
