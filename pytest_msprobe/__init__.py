"""pytest-msprobe: the dump of a training step as a pytest suite, and one assertion for kernels without a dump.

Imports nothing: pytest imports this package in every project where it is installed. PYTEST_DONT_REWRITE: see `support`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_msprobe.own_kernels import assert_rounding_only, rounding_of
    from pytest_msprobe.own_kernels.judging import Rounding, UnusableReference

__all__ = ["Rounding", "UnusableReference", "assert_rounding_only", "rounding_of"]
__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = "own_kernels" if name in ("assert_rounding_only", "rounding_of") else "own_kernels.judging"
    return getattr(import_module(f"pytest_msprobe.{module}"), name)
