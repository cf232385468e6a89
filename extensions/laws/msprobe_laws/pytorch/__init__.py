"""What is seen of a training of PyTorch, for the laws. Importing this package starts it where MSPROBE_LAWS is set."""

from __future__ import annotations

from typing import Any

from msprobe_laws.extension import is_wanted, start

__all__ = ["watch_laws"]

if is_wanted():
    start("pytorch")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from msprobe_laws.pytorch.watch import watch_laws

    return watch_laws
