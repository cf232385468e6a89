"""Errors of the script's own computation, which MindSpore raises where somebody looks at any tensor later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from msprobe_collector.mindspore.mindspore_internals import wait_for_graphs
from msprobe_collector.recording.guard import ComputationFailed


def _elements(tensor: Any) -> Any:
    return tensor.asnumpy()


def failure_at(error: Exception, tensor: Any, again: Callable[[Any], Any] = _elements) -> ComputationFailed | None:
    """Return an error that came up at a look at `tensor` if it is one of what the script had started, on its way there.

    MindSpore raises the error of a kernel at the first look at any tensor, and never again unless the failed call made
    this very tensor, which then has no shape. What fails `again` on a tensor with a shape is the look itself.
    """
    if not _may_be_of_a_kernel(error):
        return None
    if has_shape(tensor):
        try:
            again(tensor)
        except Exception:
            return None
    return failure_of(error)


def failure_of(error: Exception) -> ComputationFailed:
    """Return an error on its way to the script; what else MindSpore would raise later for the same call ends here."""
    with suppress(Exception):
        wait_for_graphs()
    return ComputationFailed(error)


@contextmanager
def errors_of_the_script(tensors: Iterable[Any]) -> Iterator[None]:
    """Tell errors of the script's computation from those of reading `tensors`, for use around looks at them.

    Raises:
        ComputationFailed: the error that came up inside is one of the script's.
    """
    try:
        yield
    except Exception as error:
        for tensor in tensors:
            if (failure := failure_at(error, tensor)) is not None:
                raise failure from error
        raise


def has_shape(tensor: Any) -> bool:
    """Return whether a tensor has one: what a failed call has made has none."""
    try:
        _ = tensor.shape
    except Exception:
        return False
    return True


def _may_be_of_a_kernel(error: Exception) -> bool:
    """Return whether it is of the kinds that MindSpore raises; want of memory or stack in Python is our own."""
    return type(error).__module__ == "builtins" and not isinstance(error, (MemoryError, RecursionError))
