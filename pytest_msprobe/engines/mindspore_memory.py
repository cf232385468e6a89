"""Memory that MindSpore keeps on a CPU of what was freed.

Its pool of tensors asks for 1 GB at a time and gives nothing back; `runtime.empty_cache` is for Ascend. The pages of
tensors that nobody has written, which get what lies idle in the pool, can be given back all the same: they stay
reserved, and read as zeros until they are written again.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

#: The least that is given back; the pool takes the smallest idle piece that is large enough, and from its beginning.
_PIECE = 1 << 24


def give_pool_back(mindspore: Any, library: Any, most: int) -> int:
    """Give the system what lies idle in MindSpore's pool on a CPU, and what it keeps of the kernels that it has run.

    Nothing of MindSpore's may be running.

    Args:
        mindspore: the framework.
        library: the C library.
        most: bytes in the pool at most, such as the memory of this process.

    Returns:
        How many bytes of the pool were looked at; 0 where MindSpore or the system lacks what that needs.
    """
    if hasattr(mindspore, "ms_memory_recycle"):
        mindspore.ms_memory_recycle()
    empty = getattr(getattr(mindspore, "mint", None), "empty", None)
    if empty is None or not hasattr(mindspore.Tensor, "data_ptr") or not hasattr(library, "madvise"):
        return 0
    idle: list[Any] = []
    try:
        for _ in range(most // _PIECE):
            idle.append(empty((_PIECE,), dtype=mindspore.uint8))
            _release_pages(library, idle[-1].data_ptr())
    except (RuntimeError, MemoryError, TypeError):
        return len(idle) * _PIECE  # there is no memory, or no such kernel in this version
    return len(idle) * _PIECE


def _release_pages(library: Any, address: int) -> None:
    """Give back the whole pages of a piece."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + _PIECE) // mmap.PAGESIZE * mmap.PAGESIZE
    library.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(mmap.MADV_DONTNEED))
