"""Python outputs (`item`, `numel`, `tolist`, `allclose`, ...) measured like arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.judgement import Judgement, Standard
from pytest_msprobe.numerics.kinds import Kind
from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.metrics import Element, Metrics, Scalar

_Path = tuple[int, ...]

_EXACT_TYPES = (bool, int, str, type(None))
_INEXACT_TYPES = (float, complex)


def compare_scalars(
    tested: object, reference: object, standard: Standard, *, dtype: np.dtype[Any] | None = None
) -> tuple[Metrics, Judgement]:
    """Metrics and verdict of two Python values: bool, int, float, complex, str, None, or nested sequences of them.

    Exact values (bool, int, str, None) must be equal. Floats go to the standard, as one vector when there are several;
    NaN equals NaN. Types must agree (1 is neither 1.0 nor True), except that a list may replace a tuple and a NumPy
    scalar for the Python value that it holds. Differing types or lengths, and values of any other type, are errors.

    `dtype` is that of the tensor that the tested floats were read from, if known: the benchmark's floats are then
    rounded once to it.
    """
    elements: list[Element] = []
    problems = list(_pair_up(tested, reference, (), elements))
    if problems:
        metrics = Metrics("other", len(elements), off_bound=standard.off_bound, structural=" ".join(problems))
    else:
        metrics = _measure_elements(elements, standard.off_bound, dtype)
    return metrics, standard.judge(metrics)


def _pair_up(tested: object, reference: object, path: _Path, elements: list[Element]) -> Iterator[str]:
    """Appends the leaves that have the same place and type on both sides; yields what does not fit."""
    tested, reference = _plain(tested), _plain(reference)
    place = f" at {list(path)}" if path else ""
    if isinstance(tested, (list, tuple)) and isinstance(reference, (list, tuple)):
        if len(tested) != len(reference):
            yield f"Lengths differ{place}: tested {len(tested)}, benchmark {len(reference)}."
            return
        for i, (tested_item, reference_item) in enumerate(zip(tested, reference, strict=True)):
            yield from _pair_up(tested_item, reference_item, (*path, i), elements)
    elif type(tested) is not type(reference):
        yield f"Types differ{place}: tested {_typed(tested)}, benchmark {_typed(reference)}."
    elif isinstance(tested, (*_EXACT_TYPES, *_INEXACT_TYPES)) and isinstance(reference, type(tested)):
        elements.append(Element(path, tested, reference))
    else:
        yield f"Values of type {type(tested).__name__}{place} cannot be compared."


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _typed(value: object) -> str:
    name = type(value).__name__
    return f"{name} {value!r}" if isinstance(value, (bool, int, float, complex)) else name


def _measure_elements(elements: list[Element], off_bound: float, dtype: np.dtype[Any] | None) -> Metrics:
    inexact = [element for element in elements if isinstance(element.tested, _INEXACT_TYPES)]
    unequal = [
        element
        for element in elements
        if not isinstance(element.tested, _INEXACT_TYPES) and element.tested != element.reference
    ]
    metrics = _measure_inexact(inexact, off_bound, dtype) if inexact else Metrics(_exact_kind(elements), 0)
    return replace(
        metrics,
        size=len(elements),
        off_bound=off_bound,
        off_count=metrics.off_count + len(unequal),
        unequal_count=len(unequal),
        first_unequal=unequal[0] if unequal else None,
    )


def _measure_inexact(elements: list[Element], off_bound: float, dtype: np.dtype[Any] | None) -> Metrics:
    tested = _vector([element.tested for element in elements])
    reference = _vector([element.reference for element in elements])
    metrics = measure(tested if dtype is None else tested.astype(dtype), reference, off_bound=off_bound)

    def relocated(element: Element | None) -> Element | None:
        return element and replace(element, index=elements[element.index[0]].index)

    return replace(
        metrics,
        worst=relocated(metrics.worst),
        worst_relative=relocated(metrics.worst_relative),
        first_nonfinite=relocated(metrics.first_nonfinite),
    )


def _vector(values: list[Scalar]) -> npt.NDArray[Any]:
    """Always float64 or complex128, however the values are mixed: leaf by leaf the types agree already."""
    return np.array(values, dtype=np.complex128 if any(isinstance(value, complex) for value in values) else np.float64)


def _exact_kind(elements: list[Element]) -> Kind:
    types = {type(element.tested) for element in elements}
    if types == {bool}:
        return "bool"
    return "int" if types == {int} else "other"
