"""Importing a framework: a million objects that stay to the end."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

from pytest_msprobe.engines.time_limit import not_counted


def load_framework(name: str) -> Any:
    """The module `name`, with all present objects excluded from garbage collection, and no time limit counting.

    Each full collection would walk over PyTorch's and MindSpore's modules again, 0.1 s a time.

    Raises:
        ImportError: it is not installed, or not usable here.
    """
    if name in sys.modules:
        return sys.modules[name]
    with not_counted():
        module = importlib.import_module(name)
    gc.freeze()
    return module
