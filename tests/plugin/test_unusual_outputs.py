"""Outputs that are not arrays of distinct floats: indices under ties, any order, Python values, empties, complex."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

Array = np.ndarray[Any, Any]
TIED = np.array([[5.0, 5.0, 1.0, 5.0], [2.0, 3.0, 3.0, 0.0]], np.float32)
G2 = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
IMAGE = np.array([[[[1.0, 7.0, 7.0, 0.0], [7.0, 2.0, 3.0, 7.0]]]], np.float32)


def f32(*values: Any) -> Array:
    return np.array(values, np.float32)


def i64(*values: Any) -> Array:
    return np.array(values, np.int64)


def run(pytester: pytest.Pytester, name: str, arguments: list[Any], outputs: list[Any], **more: Any) -> Any:
    builder = DumpBuilder(pytester.path).call(name, arguments, outputs, **more)
    return pytester.runpytest(f"--msprobe-dump={builder.write()}", "-rs")


STABLE = {"stable": True}
UNSORTED = {"sorted": False}
INVERSE = {"sorted": False, "return_inverse": True, "return_counts": True}
PASSES: dict[str, tuple[str, list[Any], list[Any], dict[str, Any]]] = {
    "topk": ("Mint.topk.0", [TIED, 2], [f32([5, 5], [3, 3]), i64([3, 0], [2, 1])], {}),
    "topk in any order": ("Mint.topk.0", [TIED, 2], [f32([5, 5], [3, 3]), i64([3, 0], [1, 2])], UNSORTED),
    "topk, smaller first": ("Mint.topk.0", [f32(1, 9, 5), 2], [f32(5, 9), i64(2, 1)], UNSORTED),
    "sort": ("Mint.sort.0", [f32(2, 1, 2)], [f32(1, 2, 2), i64(1, 2, 0)], {}),
    "stable sort": ("Mint.sort.0", [f32(2, 1, 2)], [f32(1, 2, 2), i64(1, 0, 2)], STABLE),
    "argsort": ("Mint.argsort.0", [f32(2, 1, 2)], [i64(1, 2, 0)], {}),
    "argmin": ("Tensor.argmin.0", [f32(2, 1, 1)], [np.array(2)], {}),
    "max with dim": ("Mint.max.0", [TIED, 1], [f32(5, 3), i64(3, 2)], {}),
    "min with dim": ("Tensor.min.0", [-TIED, 1], [f32(-5, -3), i64(1, 2)], {}),
    "median": ("Mint.median.0", [TIED, 1], [f32(5, 2), i64(0, 0)], {}),
    "kthvalue": ("Mint.kthvalue.0", [TIED, 2], [f32(5, 2), i64(1, 0)], {}),
    "cummax": ("Mint.cummax.0", [TIED, 1], [f32([5, 5, 5, 5], [2, 3, 3, 3]), i64([0, 0, 0, 0], [0, 1, 1, 1])], {}),
    "ops.max of everything": ("Functional.max.0", [TIED], [np.array(5, np.float32), np.array(0)], {}),
    "ops.max": ("Functional.max.0", [TIED, 1], [f32(5, 3), i64(1, 2)], {}),
    "argmax_with_value": ("Tensor.argmax_with_value.0", [TIED, 1], [f32(5, 3), i64(1, 2)], {}),
    "Primitive TopK": (
        "Primitive.t.TopK.0",
        [TIED, 2],
        [f32([5, 5], [3, 3]), i64([1, 3], [2, 1]).astype(np.int32)],
        {},
    ),
    "Primitive MaxDim": ("Primitive.m.MaxDim.0", [TIED, 1], [f32(5, 3), i64(1, 2)], {}),
    "pooling": (
        "MintFunctional.max_pool2d.0",
        [IMAGE, 2],
        [f32([[[7, 7]]]), i64([[[4, 7]]])],
        {"return_indices": True},
    ),
    "unique": ("Mint.unique.0", [f32(3, 1, 3)], [f32(1, 3), i64(1, 0, 1)], {"return_inverse": True}),
    "unique in any order": ("Mint.unique.0", [f32(3, 1, 3)], [f32(3, 1), i64(0, 1, 0), i64(2, 1)], INVERSE),
    "nonzero": ("Mint.nonzero.0", [f32(0, 2, 3)], [i64([1], [2])], {}),
    "searchsorted": ("Mint.searchsorted.0", [f32(1, 2, 2, 3), f32(2)], [i64(1)], {}),
    "searchsorted from the right": ("Mint.searchsorted.0", [f32(1, 2, 2, 3), f32(2)], [i64(3)], {"right": True}),
    "bfloat16 topk": (
        "Mint.topk.0",
        [TIED.astype(ml_dtypes.bfloat16), 1],
        [f32([5], [3]).astype(ml_dtypes.bfloat16), i64([3], [2])],
        {},
    ),
    "bool": ("Mint.equal.0", [TIED, TIED], [True], {}),
    "Python int": ("Tensor.dim.0", [TIED], [2], {}),
    "Python float": ("Tensor.item.0", [f32(0.1)], [float(np.float32(0.1))], {}),
    "NaN as a Python float": ("Tensor.item.0", [f32(np.nan)], [float("nan")], {}),
    "nested Python list": ("Tensor.tolist.0", [TIED], TIED.tolist(), {}),
    "empty": ("Mint.add.0", [np.zeros((0, 3), np.float32)] * 2, [np.zeros((0, 3), np.float32)], {}),
    "empty topk": (
        "Mint.topk.0",
        [np.zeros((0, 3), np.float32), 2],
        [np.zeros((0, 2), np.float32), np.zeros((0, 2), np.int64)],
        {},
    ),
    "0-d": ("Mint.sum.0", [TIED], [np.array(24, np.float32)], {}),
    "0-d integer": ("Mint.sum.0", [i64(1, 2)], [np.array(3)], {}),
    "complex": ("Mint.mul.0", [np.array([1 + 2j, 3j], np.complex64)] * 2, [np.array([-3 + 4j, -9], np.complex64)], {}),
    "complex to real": ("Mint.abs.0", [np.array([3 + 4j], np.complex64)], [f32(5)], {}),
}


@pytest.mark.parametrize("case", PASSES)
def test_right_outputs_pass(pytester: pytest.Pytester, case: str) -> None:
    name, arguments, outputs, keywords = PASSES[case]
    run(pytester, name, arguments, outputs, keywords=keywords).assert_outcomes(passed=1)


ERRORS: dict[str, tuple[str, list[Any], list[Any], dict[str, Any], str]] = {
    "topk twice": ("Mint.topk.0", [TIED, 2], [f32([5, 5], [3, 3]), i64([0, 0], [1, 2])], {}, "occurs twice"),
    "topk of a lesser value": (
        "Mint.topk.0",
        [TIED, 2],
        [f32([5, 5], [3, 3]), i64([0, 2], [1, 2])],
        {},
        "selects another value",
    ),
    "values that the indices do not select": (
        "Mint.max.0",
        [f32([1, 1.00001]), 1],
        [f32(1), i64(1)],
        {},
        "the values output holds another value than the index selects",
    ),
    "sort that is not stable": (
        "Mint.sort.0",
        [f32(2, 1, 2)],
        [f32(1, 2, 2), i64(1, 2, 0)],
        STABLE,
        "stands behind a later one of an equal value",
    ),
    "index out of range": ("Mint.argsort.0", [f32(2, 1)], [i64(1, 2)], {}, "not in 0..1"),
    "wrong inverse": ("Mint.unique.0", [f32(3, 1, 3)], [f32(3, 1), i64(0, 0, 1), i64(2, 1)], INVERSE, "differ"),
    "wrong counts": ("Mint.unique.0", [f32(3, 1, 3)], [f32(3, 1), i64(0, 1, 0), i64(1, 2)], INVERSE, "differ"),
    "pooling outside the maximum": (
        "MintFunctional.max_pool2d.0",
        [IMAGE, 2],
        [f32([[[7, 7]]]), i64([[[0, 7]]])],
        {"return_indices": True},
        "selects another value",
    ),
    "bool": ("Mint.equal.0", [TIED, TIED], [False], {}, "tested False"),
    "bool for int": ("Tensor.dim.0", [f32(1)], [True], {}, "Types differ"),
    "nested Python list": ("Tensor.tolist.0", [TIED], (TIED + 1).tolist(), {}, "error"),
    "empty of another shape": (
        "Mint.neg.0",
        [np.zeros((0, 3), np.float32)],
        [np.zeros((3, 0), np.float32)],
        {},
        "Shapes differ",
    ),
    "imaginary part lost": ("Mint.neg.0", [np.array([1 + 2j], np.complex64)], [np.array([-1], np.complex64)], {}, ""),
    "real for complex": ("Mint.neg.0", [np.array([1 + 2j], np.complex64)], [f32(-1)], {}, "Element kinds differ"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_outputs_are_errors(pytester: pytest.Pytester, case: str) -> None:
    name, arguments, outputs, keywords, text = ERRORS[case]
    result = run(pytester, name, arguments, outputs, keywords=keywords)
    result.assert_outcomes(failed=1)
    assert text in result.stdout.str()


GRADIENTS: dict[str, tuple[str, list[Any], list[Any], dict[str, Any], Array, Array]] = {
    "topk": (
        "Mint.topk.0",
        [TIED, 2],
        [f32([5, 5], [3, 3]), i64([3, 0], [2, 1])],
        {},
        G2,
        f32([2, 0, 0, 1], [0, 4, 3, 0]),
    ),
    "max with dim": ("Mint.max.0", [TIED, 1], [f32(5, 3), i64(3, 2)], {}, f32(1, 2), f32([0, 0, 0, 1], [0, 0, 2, 0])),
    "pooling": (
        "MintFunctional.max_pool2d.0",
        [IMAGE, 2],
        [f32([[[7, 7]]]), i64([[[4, 7]]])],
        {"return_indices": True},
        f32([[[1, 2]]]),
        f32([[[0, 0, 0, 0], [1, 0, 0, 2]]]),
    ),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_under_ties_follow_the_tested_indices(pytester: pytest.Pytester, reports: Reports, case: str) -> None:
    name, arguments, outputs, keywords, incoming, gradient = GRADIENTS[case]
    gradient = gradient.reshape(arguments[0].shape)
    for number, found in enumerate((gradient, np.flip(gradient, axis=-1).copy())):
        result = run(
            pytester,
            name.replace(".0", f".{number}"),
            arguments,
            [output.reshape(-1, *output.shape[1:]) for output in outputs],
            keywords=keywords,
            incoming=[incoming],
            gradients=[found],
        )
        result.assert_outcomes(passed=2 - number, failed=number)
