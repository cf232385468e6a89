from __future__ import annotations

import pytest

from pytest_msprobe.engines.mindspore_engine import missing_kernel

# Verbatim first lines of MindSpore 2.10 on CPU.
LACKING = [
    (RuntimeError("The kernel LinalgVectorNorm unregistered.\n\n---"), "kernel LinalgVectorNorm"),
    (
        RuntimeError("\n-----\n- Kernel select failed:\n----\nUnsupported op [Fmin] on CPU, Please confirm"),
        "kernel Fmin",
    ),
    (RuntimeError("Create kernelmod for op LayerNormExt failed"), "kernel LayerNormExt"),
    (RuntimeError("Not found op FuncMaxPool2D on device CPU"), "kernel FuncMaxPool2D"),
    (RuntimeError("'repeat' is not supported on this device."), "kernel repeat"),
    (NotImplementedError("einsum only supports Ascend."), "kernel einsum"),
    (NotImplementedError("new_full method support Ascend only"), "kernel new_full"),
    (ValueError("should not come here for kthvalue py_method."), "kernel kthvalue"),
    (AttributeError("'Registry' object has no attribute 'triangular_solve'"), "kernel triangular_solve"),
    (
        TypeError("Select CPU operator[MatMul] fail! Unsupported data type!\nThe supported"),
        "kernel MatMul for this dtype",
    ),
    (RuntimeError("Reduce does not support this kernel data type: [Kernel Attr]"), "kernel Reduce for this dtype"),
    (RuntimeError("KernelMod Init Failed: Round"), "kernel Round for this dtype"),
]
REFUSED_DTYPES = [
    "For primitive[Conv2D], the input argument[w] must be a type of {Tensor[Float32]}, but got Tensor[Float64].",
    "For primitive[Lerp], the input[start] supports types: Float16, Float32, BFloat16. But got Float64.",
    "For Primitive[Cdist], the type of the input_x tensor must be [Float32], but got BFloat16!",
    "For NanToNum, the dtype of 'input' must not be float64.",
    "For 'diff', 'input' do not support complex64/complex128/float64/int16",
    "For 'Addmv', the 'input' should be one of [mindspore.float32], but got 'mindspore.bfloat16'.",
    "The 'x1' doesn't support 'Float64' and expect to receive [mindspore.float16, mindspore.float32].",
]
ERRORS = [
    TypeError(
        "For primitive[MultiMarginLoss], the input argument[target] must be a type of {Int64}, but got Tensor[Int32]."
    ),
    TypeError('Failed calling add with "add(input=Tensor, other=str)". The valid calling should be: "add(...)"'),
    RuntimeError("For 'MatMulExt' op, shape1[-1] must be equal to shape2[-2], but got 3 and 4."),
    ValueError("axis 7 is out of range"),
]


@pytest.mark.parametrize(("error", "lacking"), LACKING)
def test_a_missing_kernel_is_named(error: Exception, lacking: str) -> None:
    assert missing_kernel(error) == lacking


@pytest.mark.parametrize("text", REFUSED_DTYPES)
def test_a_refused_precision_is_a_missing_kernel(text: str) -> None:
    lacking = missing_kernel(TypeError(text))
    assert lacking is not None
    assert text in lacking


@pytest.mark.parametrize("error", ERRORS)
def test_a_wrong_argument_stays_an_error(error: Exception) -> None:
    assert missing_kernel(error) is None
