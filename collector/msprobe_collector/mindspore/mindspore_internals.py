"""The state of MindSpore, and its private names whose place depends on the version."""

from __future__ import annotations

from typing import Any

from msprobe_collector.recording.process_groups import ranks_of

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
