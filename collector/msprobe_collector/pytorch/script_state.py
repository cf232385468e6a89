"""The state of PyTorch in which the collector works: outside of the modes and tracers of the script.

What the collector asks of a tensor (`detach`, a sum) is an operator like those of the script: a TorchDispatchMode would
count it, a TorchFunctionMode could change it, and `torch.jit.trace`, `make_fx` and `torch.export` would put it into
the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.utils import _python_dispatch

#: Some of its functions have no types.
_C: Any = torch._C
_dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack
_tracer: Callable[[], Any] = _C._get_tracing_state
_without_functions: Callable[[], AbstractContextManager[object]] = _C.DisableTorchFunction


def outside() -> AbstractContextManager[object]:
    """A context in which no mode and no tracer of the script sees what this thread does. Gradient mode stays."""
    if _dispatch_modes() or _tracer() is not None:
        return _outside_of_all()
    return _without_functions()


@contextmanager
def _outside_of_all() -> Iterator[None]:
    tracer = _tracer()
    if tracer is not None:
        _C._set_tracing_state(None)
    try:
        with _without_functions(), _python_dispatch._disable_current_modes():
            yield
    finally:
        if tracer is not None:
            _C._set_tracing_state(tracer)
