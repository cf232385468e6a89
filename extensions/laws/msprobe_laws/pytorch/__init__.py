"""What is seen of a training of PyTorch, for the laws. `watch_laws` loads when it is first used."""

from __future__ import annotations

from typing import Any

__all__ = ["watch_laws"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from msprobe_laws.pytorch.watch import watch_laws

    return watch_laws
