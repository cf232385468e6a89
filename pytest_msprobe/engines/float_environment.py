"""The floating-point mode of this thread, which a framework's kernel may change behind our back.

MindSpore's CPU kernels (those of `ops.cosine_similarity`, for one) leave flush-to-zero switched on in the thread that
called them: from then on NumPy and PyTorch read every subnormal number as zero, in the benchmark too.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_SMALLEST = float.fromhex("0x1p-1074")
#: FE_DFL_ENV of glibc and of musl on x86-64 and AArch64.
_DEFAULT_ENVIRONMENT = ctypes.c_void_p(-1)


def restore_subnormals() -> None:
    """Give this thread the default floating-point mode when a kernel has left it flushing subnormals to zero."""
    if _SMALLEST * 1.0 == 0.0:
        library = _math_library()
        if library is not None:
            library.fesetenv(_DEFAULT_ENVIRONMENT)


@cache
def _math_library() -> Any:
    try:
        library = ctypes.CDLL("libm.so.6")
    except OSError:  # no glibc: nothing we know to call
        return None
    return library if hasattr(library, "fesetenv") else None
