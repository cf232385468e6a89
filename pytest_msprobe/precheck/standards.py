"""Standards by the names that users know them by."""

from __future__ import annotations

from pytest_msprobe.numerics import BackwardError, CosineMaxAbs, Standard


def make_standard(name: str, *, cosine: float, max_abs: float) -> Standard:
    """The standard called `name`; `cosine` and `max_abs` are the bounds of the default one."""
    if name == BackwardError.name:
        return BackwardError()
    return CosineMaxAbs(cosine, max_abs)
