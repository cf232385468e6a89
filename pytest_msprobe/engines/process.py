"""What a process with a framework needs: its import, a limit of time, idle memory given back, the floating-point mode.

All that is asked of torch_npu for Ascend NPUs under PyTorch stands here as well. It has run
against a stand-in only, never on an NPU.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from pytest_msprobe.engines.protocol import Unsupported, own_device


class DeviceFailure(BaseException):
    """A device that can run no call at all, or none any more: it ends the run.

    No `Exception`: what takes the error of one call for its result must let this one pass.
    """

    def __init__(self, label: str, reason: str) -> None:
        """Say of the device `label` why no call can run on it."""
        where = f" (device {own_device()})" if own_device() else ""
        super().__init__(f"{label}{where}: no call can run on it: {reason}")


#: What every check may take at least, and what each element of its estimated cost adds: a slow
#: core needs a thousandth of that, so that only what really hangs meets the limit.
_BASE_SECONDS = 60.0
_SECONDS_PER_ELEMENT = 1e-6
#: Of a process that met its limit; faulthandler's.
EXIT_CODE = 1


def time_limit_seconds(chosen: float | None, cost: float) -> float | None:
    """The limit for a check of estimated `cost` in elements: as chosen, 0 for none; else it grows with the cost."""
    if chosen is None:
        return _BASE_SECONDS + _SECONDS_PER_ELEMENT * cost
    return chosen or None


#: The limit that is running in this process; None for none. faulthandler has one watch per process, too.
_running: float | None = None


@contextmanager
def ending_after(seconds: float | None) -> Iterator[None]:
    """End this process, with a traceback of all threads, when what is inside takes longer than `seconds`.

    The watch is a thread of C that needs no GIL: it also ends a kernel that never releases it. Only for worker
    processes, which xdist replaces. Its exit code is `EXIT_CODE`.
    """
    global _running  # noqa: PLW0603  # one per process, as the watch is
    if seconds is None:
        yield
        return
    _running = seconds
    _start(seconds)
    try:
        yield
    finally:
        _running = None
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def not_counted() -> Iterator[None]:
    """Leave what is inside, such as the import of a framework, out of the limit, which then starts again."""
    faulthandler.cancel_dump_traceback_later()
    try:
        yield
    finally:
        if _running is not None:
            _start(_running)


def _start(seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)


def load_framework(name: str) -> Any:
    """The module `name`, imported without garbage collection, with all present objects excluded from it afterwards.

    Hardly anything that an import makes is garbage: collecting takes a tenth of the import of PyTorch, and each later
    full collection would walk over PyTorch's and MindSpore's modules again, 0.1 s a time. One collection of what is new
    must be, though: among the garbage are tracebacks, whose frames lead to the frames that call this function, and
    would keep what is in them, all tensors of the first API call, to the end. No time limit counts.

    Raises:
        ImportError: it is not installed, or not usable here.
    """
    if name in sys.modules:
        return sys.modules[name]
    # Idle threads of an OpenMP runtime spin and take the cores from other work: a seventh of the processor time of a
    # run with small tensors, and MindSpore 2.5 times slower beside PyTorch, which brings a runtime of its own. Read
    # when the runtime loads; a user's own value stays.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with not_counted():
            module = importlib.import_module(name)
    finally:
        if is_collecting:
            gc.enable()
    gc.collect(0)
    gc.freeze()
    return module


def use_npu(torch: Any, device: str) -> None:
    """Make `device` (`npu`, `npu:1`) usable: importing torch_npu adds it to PyTorch.

    Kernels run synchronously, so that an error belongs to its own call.

    Raises:
        ImportError: torch_npu is missing, or does not fit the installed PyTorch.
        DeviceFailure: there is no NPU.
    """
    os.environ.setdefault("ASCEND_LAUNCH_BLOCKING", "1")
    load_framework("torch_npu")
    if not torch.npu.is_available():
        raise DeviceFailure(f"torch {device.upper()}", "torch_npu finds no NPU")
    if ":" in device:
        torch.npu.set_device(device)


def npu_function(name: str) -> Callable[..., object]:
    """The function `name` of torch_npu, one of those in apis/facts/torch_calls/npu.txt.

    Raises:
        Unsupported: the installed torch_npu lacks it.
    """
    function = getattr(load_framework("torch_npu"), name, None)
    if function is None:
        raise Unsupported(f"the installed torch_npu has no {name}")
    return cast("Callable[..., object]", function)


#: Memory of this process after it gave back what lay idle.
_held = 0
#: What a framework gives back of the memory that it keeps: (C library, memory of this process) -> bytes.
_pools: list[Callable[[Any, int], int]] = []


def add_pool(give_back: Callable[[Any, int], int]) -> None:
    """Let `give_idle_memory_back` ask `give_back` as well: (C library, memory of this process) -> bytes."""
    _pools.append(give_back)


def give_idle_memory_back() -> None:
    """Give the system what is kept of freed arrays. To be called when those of an API call are released.

    The C library keeps blocks of up to 32 MB, between others that are in use, and a framework whole pools: hundreds of
    megabytes in a run over large tensors. To look for them takes milliseconds, so that it is done only where the
    process has grown since, and with glibc.
    """
    global _held  # noqa: PLW0603  # one per process, as its memory is
    size = _private_bytes()
    library = _c_library("libc.so.6") if size > _held + (1 << 26) else None
    if library is not None and hasattr(library, "malloc_trim"):
        for give_back in _pools:
            give_back(library, size)
        library.malloc_trim(0)
        _held = _private_bytes()


def _private_bytes() -> int:
    """Memory of this process that is no file's; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


_SMALLEST = float.fromhex("0x1p-1074")
#: FE_DFL_ENV of glibc and of musl on x86-64 and AArch64.
_DEFAULT_ENVIRONMENT = ctypes.c_void_p(-1)


def restore_subnormals() -> None:
    """Give this thread the default floating-point mode when a kernel has left it flushing subnormals to zero.

    MindSpore's CPU kernels (those of `ops.cosine_similarity`, for one) leave flush-to-zero
    switched on in the thread that called them: from then on NumPy and PyTorch read every subnormal
    number as zero, in the benchmark too.
    """
    if _SMALLEST * 1.0 == 0.0:
        library = _c_library("libm.so.6")
        if library is not None and hasattr(library, "fesetenv"):
            library.fesetenv(_DEFAULT_ENVIRONMENT)


@cache
def _c_library(name: str) -> Any:
    try:
        return ctypes.CDLL(name)
    except OSError:  # no glibc: nothing we know to call
        return None


#: The least that is given back; the pool takes the smallest idle piece that is large enough, and from its beginning.
_PIECE = 1 << 24


def give_pool_back(mindspore: Any, library: Any, most: int) -> int:
    """Give the system what lies idle in MindSpore's pool on a CPU, and what it keeps of the kernels that it has run.

    The pool asks for 1 GB at a time and gives nothing back; `runtime.empty_cache` is for Ascend.
    The pages of tensors that nobody has written, which get what lies idle in the pool, can be
    given back all the same: they stay reserved, and read as zeros until they are written again.
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
