"""Private names of MindSpore whose place depends on its version; others stand where they are used."""

from __future__ import annotations

from typing import Any


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
    graph_executors()._pynative_executor.sync()
