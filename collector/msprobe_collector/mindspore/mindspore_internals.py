"""The state of MindSpore, its private names whose place depends on the version, and errors that it raises late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from msprobe_collector.recording.guard import ComputationFailed
from msprobe_collector.recording.process import ranks_of

#: What dumps call the type of a tensor.
TENSOR = "mindspore.Tensor"


def graph_executors() -> Any:
    """The module of `jit`, of the executors of graphs and of that of PyNative mode; it moved in MindSpore 2.9."""
    try:
        from mindspore.graph import api
    except ImportError:
        from mindspore.common import api
    return api


def wait_for_graphs() -> None:
    """Return when the graphs that were started have run; raises what they raised.

    `mindspore.runtime.synchronize` logs an error on CPU, and waits for nothing the first time.
    """
    from mindspore._c_expression import PyNativeExecutor_

    PyNativeExecutor_.get_instance().sync()


def communication_rank() -> int | None:
    """This process's rank in MindSpore's communication, or None before that is initialised."""
    from mindspore.communication import get_rank
    from mindspore.communication._comm_helper import GlobalComm

    return int(get_rank()) if GlobalComm.INITED else None


def communication_ranks() -> dict[str, object] | None:
    """What `Framework.ranks` says; MindSpore's groups have names that mean nothing to others."""
    from mindspore.communication import _comm_helper, get_group_size

    if (rank := communication_rank()) is None:
        return None
    groups = (("", members) for members in dict(_comm_helper._ExistingGroup.ITEMS).values())
    return ranks_of(rank, int(get_group_size()), groups)


def is_graph_mode() -> bool:
    """Return whether MindSpore runs Cells as graphs."""
    import mindspore

    return bool(mindspore.get_context("mode") == mindspore.GRAPH_MODE)


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
