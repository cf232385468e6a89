"""Our own references of fused and NPU-only MindSpore APIs; apis/facts/references.txt names them.

A function has the parameters of its MindSpore API, or those that its fact line passes on. It is written in PyTorch, so
that the torch engine runs it in float64 or in the dump's dtypes and takes its gradients by autograd. Importing this
package loads no framework; a module of functions is imported when the torch engine first runs one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast


def function(target: str) -> Callable[..., object]:
    """The function called `references.module.name`. Imports PyTorch."""
    _, module, name = target.split(".")
    return cast("Callable[..., object]", getattr(import_module(f"{__name__}.{module}"), name))
