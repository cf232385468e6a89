"""The child's side of `child`: serves one engine on its pipes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, BinaryIO

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines.child import receive, send
from pytest_msprobe.engines.process import load_framework
from pytest_msprobe.engines.protocol import Call, Engine, Execution, Unsupported

#: Forwards of the API call that is being checked, by number: its own and those for perturbed inputs.
_Kept = dict[int, tuple[ApiName, Execution]]


def make_engine(name: str) -> Engine:
    """The float64 CPU engine called `name`."""
    if name == "torch":
        from pytest_msprobe.engines.torch_engine import TorchEngine

        return TorchEngine(is_raised=True)
    from pytest_msprobe.engines.mindspore_engine import MindSporeEngine

    return MindSporeEngine(is_raised=True)


def serve(engine: Engine, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the other side closes; the last executions of one API call are kept."""
    kept: _Kept = {}
    while True:
        try:
            request = receive(requests)
        except EOFError:
            return
        try:
            reply = _answer(engine, request, kept)
        except Unsupported as error:
            reply = {"unsupported": str(error)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        send(replies, reply)


def _answer(engine: Engine, request: dict[str, Any], kept: _Kept) -> dict[str, Any]:
    if request["do"] == "start":
        with suppress(ImportError):  # the first forward says so
            load_framework(engine.name)
        return {}
    if request["do"] == "forward":
        call: Call = request["call"]
        _make_room(kept, call.api)
        execution = engine.forward(call, differentiate=request["differentiate"])
        kept[request["execution"]] = (call.api, execution)
        return {"outputs": execution.outputs}
    _, execution = kept[request["execution"]]
    return {"gradients": execution.gradients(request["incoming"])}


def _make_room(kept: _Kept, api: ApiName) -> None:
    """Let go of another call's executions, and of the oldest."""
    for number in [number for number, (of, _) in kept.items() if of != api]:
        del kept[number]
    # A forward, and the same for perturbed inputs, some of which may have to be made anew within
    # the inputs' range.
    while len(kept) >= 5:
        del kept[next(iter(kept))]


def main(name: str) -> None:
    """Serve the engine called `name` on the original stdout; whatever a framework prints goes to stderr instead."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(make_engine(name), sys.stdin.buffer, replies)
