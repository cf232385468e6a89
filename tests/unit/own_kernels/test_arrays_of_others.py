"""Kernels on NumPy arrays, on MindSpore tensors and on arrays of frameworks that are not installed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe import assert_rounding_only, rounding_of

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((4, 8)).astype(np.float32)


class Jax:
    """An array that NumPy can read and nobody can write into."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype, self.shape = array.dtype, array.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array

    def exp(self) -> Jax:
        return Jax(np.exp(self.array.astype(np.float32)).astype(self.dtype))


class CuPy:
    """An array that NumPy cannot read but by DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype, self.shape = array.dtype, array.shape

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def copy(self) -> CuPy:
        return CuPy(self.array.copy())

    def exp(self) -> CuPy:
        return CuPy(np.exp(self.array))


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_numpy() -> None:
    assert_rounding_only(softmax, softmax, X)
    assert "1.01 x too large" in rounding_of(lambda x: softmax(x) * np.float32(1.01), softmax, X).text
    before = X.copy()
    assert_rounding_only(lambda x: np.exp(x, out=x), lambda x: np.exp(x, out=x), X)
    assert "equals input 0" in rounding_of(lambda x: None, lambda x: x.sort(), -np.sort(-X)).text
    assert np.array_equal(X, before)


@pytest.mark.parametrize("array", [Jax(X.astype(ml_dtypes.bfloat16)), Jax(X), CuPy(X)], ids=["bfloat16", "jax", "cupy"])
def test_arrays_of_others(array: Any) -> None:
    assert_rounding_only(lambda x: x.exp(), np.exp, array)
    wrong = rounding_of(lambda x: type(x)((np.asarray(x.exp().array) * 1.5).astype(x.dtype)), np.exp, array)
    assert "x too large" in wrong.text.splitlines()[0]


def test_a_reference_in_pytorch_for_arrays_of_others() -> None:
    torch = pytest.importorskip("torch")
    assert_rounding_only(lambda x: x.exp(), lambda x: torch.exp(x), Jax(X))
    assert_rounding_only(lambda x: x.exp(), np.exp, torch.from_numpy(X))


@pytest.mark.slow
def test_mindspore() -> None:
    mindspore = pytest.importorskip("mindspore")
    torch = pytest.importorskip("torch")
    x = mindspore.Tensor(X)
    weight = mindspore.Parameter(mindspore.Tensor(X.T.copy()), name="weight")

    def kernel(x: Any, weight: Any) -> Any:
        return mindspore.ops.matmul(x, weight)

    found = rounding_of(kernel, lambda x, weight: torch.matmul(x, weight), x, weight)
    assert found
    assert [row.label for row in found.outputs] == ["output.0", "gradient.1"]
    assert_rounding_only(kernel, kernel, x, weight, gradients=True)
    assert_rounding_only(lambda x: mindspore.ops.softmax(x, -1), softmax, x)
    assert "1.01 x too large" in rounding_of(lambda x: mindspore.ops.tanh(x) * 1.01, np.tanh, x).text
