"""Columns and cells of grad_summary_{step}.csv."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msprobe_collector.configuration import GradientMonitorSettings
from msprobe_collector.gradient_monitor.figures import GradientFigures, md5_of_gradient, measure_gradient

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def columns(settings: GradientMonitorSettings) -> list[str]:
    """Header of the file. `nan` and `inf` stand last, where readers of the older tool's columns pass over them."""
    middle = {"L0": ["MD5"], "L1": [], "L2": [*interval_labels(settings.bounds), "=0"]}[settings.level]
    return ["param_name", *middle, "max", "min", "norm", "shape", "nan", "inf"]


def interval_labels(bounds: Sequence[float]) -> list[str]:
    """`(-inf, -1]`, `(-1, 0]`, ..., `(1, inf)`."""
    inner = [f"({left}, {right}]" for left, right in pairwise(bounds)]
    return [f"(-inf, {bounds[0]}]", *inner, f"({bounds[-1]}, inf)"]


def row(name: str, values: npt.NDArray[np.floating[Any]], settings: GradientMonitorSettings) -> list[str]:
    """Cells for the gradient of the parameter `name`: floats so that they read back equal, shares of all elements."""
    figures = measure_gradient(values, settings.bounds if settings.level == "L2" else ())
    middle: list[str] = []
    if settings.level == "L0":
        middle = [md5_of_gradient(values)]
    elif settings.level == "L2":
        middle = _shares(figures)
    numbers = [repr(number) for number in (figures.max, figures.min, figures.norm)]
    return [name, *middle, *numbers, str(list(values.shape)), str(figures.nans), str(figures.infs)]


def _shares(figures: GradientFigures) -> list[str]:
    counts = (*figures.interval_counts, figures.zeros)
    return [repr(count / figures.size if figures.size else 0.0) for count in counts]
