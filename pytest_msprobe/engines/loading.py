"""Importing a framework: a million objects that stay to the end."""

from __future__ import annotations

import gc
import importlib
from typing import Any


def load_framework(name: str) -> Any:
    """The module `name`, with all objects of now taken out of the garbage collector's sight.

    Each full collection would walk over PyTorch's and MindSpore's modules again, 0.1 s a time.

    Raises:
        ImportError: it is not installed, or not usable here.
    """
    module = importlib.import_module(name)
    gc.freeze()
    return module
