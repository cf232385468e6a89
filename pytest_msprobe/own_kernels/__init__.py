"""Kernels that stand in no dump, judged by the rules of the pre-check: `assert_rounding_only` and `rounding_of`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pytest_msprobe.own_kernels.judging import Rounding


def rounding_of(
    actual: Any,
    reference: Callable[..., Any],
    /,
    *inputs: Any,
    gradients: bool | None = None,
    accumulates: Literal["float32", "float16", "bfloat16", "same"] = "float32",
    reduced: Literal["tf32", "hf32"] | None = None,
    no_worse_than: Callable[..., Any] | None = None,
    reference_device: str = "cpu",
    seed: int = 0,
    **keywords: Any,
) -> Rounding:
    """Judge a kernel: is what it returns, and its gradients, the right result but for rounding?

    Args:
        actual: the kernel, or what it has returned.
        reference: computes the same from float64 tensors; it gets the same arguments.
        *inputs: arguments of both: tensors of any dtype and device, and whatever else they take.
        gradients: None judges those of the inputs that require one, True of all, False of none.
        accumulates: narrowest dtype that the kernel may add and keep results inside in; "same" is that of the inputs.
        reduced: the format that float32 operands of products are rounded to.
        no_worse_than: another kernel; at most twice its error is allowed, in place of rounding.
        reference_device: where a reference in PyTorch runs.
        seed: of the incoming gradient; random kernels draw with it.
        **keywords: further arguments of both.

    Raises:
        UnusableReference: the reference cannot run in float64, or rounds to a narrower dtype.
        AssertionError: the kernel raises, or has no gradient where an input requires one.
    """
    from pytest_msprobe.own_kernels.arguments import Arguments
    from pytest_msprobe.own_kernels.judging import Allowed, judged

    allowed = Allowed(gradients, accumulates, reduced, no_worse_than, device=reference_device, seed=seed)
    return judged(actual, reference, Arguments(inputs, keywords), allowed)


def assert_rounding_only(actual: Any, reference: Callable[..., Any], /, *inputs: Any, **options: Any) -> None:
    """Assert that a kernel is off by rounding only; arguments are those of `rounding_of`.

    Raises:
        AssertionError: it is off by more, or cannot be judged.
        UnusableReference: as `rounding_of` does.
    """
    __tracebackhide__ = True
    rounding = rounding_of(actual, reference, *inputs, **options)
    if not rounding:
        raise AssertionError(rounding.text)
