"""How MindSpore says that a backend has no kernel for an API or a dtype: not one way but twenty.

Texts seen on MindSpore 2.7 and 2.10, CPU, by calling every sampled API in float64, float16 and bfloat16. What is not
listed here stays an error, so that a wrong argument is never taken for a missing kernel.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

#: How often an error is waited for again; two have been seen.
_MOST_LEFT_ERRORS = 10
_NO_KERNEL = re.compile(
    r"The kernel (?P<a>\w+) unregistered"
    r"|Unsupported op \[(?P<b>\w+)\]"
    r"|Create kernelmod for op (?P<c>\w+) failed"
    r"|Not found op (?P<d>\w+) on device"
    r"|'(?P<e>\w+)' is not supported on this device"
    r"|(?P<f>\w+) only supports? Ascend"
    r"|(?P<g>\w+) method supports? Ascend only"
    r"|should not come here for (?P<h>\w+) py_method"
    r"|'Registry' object has no attribute '(?P<i>\w+)'"
    r"|(?P<j>Not implement exception)"
)
_NO_DTYPE = re.compile(
    r"Select \w+ operator\[(?P<a>\w+)\] fail! Unsupported data type"
    r"|(?P<b>\w+) does not support this kernel data type"
    r"|KernelMod Init Failed: (?P<c>\w+)"
    r"|(?P<d>bad_function_call)"
)
#: Only for dtypes that are a question of precision: an integer where a float belongs is a wrong argument.
_PRECISION = r"(?:b?float16|float64|complex(?:64|128))"
_REFUSED_DTYPE = re.compile(
    rf"but got [^\n]*?\b(?:\w+[.:\[])?(?P<a>{_PRECISION})\b"
    rf"|must not be (?P<b>{_PRECISION})"
    rf"|(?:do not|doesn't|does not) support '?[\w/]*?(?P<c>{_PRECISION})",
    re.IGNORECASE,
)


def missing_kernel(error: BaseException) -> str | None:
    """What MindSpore lacks, `kernel LinalgVectorNorm` or `kernel MatMul for this dtype`; None for another error."""
    text = str(error)
    if match := _NO_KERNEL.search(text):
        return f"kernel {_name(match)}"
    if match := _NO_DTYPE.search(text):
        return f"kernel {_name(match)} for this dtype"
    if isinstance(error, (TypeError, ValueError)) and (match := _REFUSED_DTYPE.search(text)):
        return f"kernel for {_name(match)} here: {text.strip().partition(chr(10))[0][:200]}"
    return None


def _name(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group)


def discard_left_errors(mindspore: Any) -> None:
    """Run something that cannot fail until it does not: MindSpore's threads may raise an error once more after it was
    raised, and would do so from the next call.
    """
    for _ in range(_MOST_LEFT_ERRORS):
        with suppress(Exception):  # of any kind: it is the error that was raised already
            mindspore.runtime.synchronize()
            (mindspore.Tensor(1.0) + 1.0).asnumpy()
            return
