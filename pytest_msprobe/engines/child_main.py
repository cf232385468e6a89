"""The child's side of `child`: serves one engine on its pipes."""

from __future__ import annotations

import os
import sys
from typing import Any, BinaryIO

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines.protocol import Call, Engine, Execution, Unsupported
from pytest_msprobe.engines.wire import receive, send


def make_engine(name: str) -> Engine:
    """The float64 CPU engine called `name`."""
    if name == "torch":
        from pytest_msprobe.engines.torch_engine import TorchEngine

        return TorchEngine(is_raised=True)
    from pytest_msprobe.engines.mindspore_engine import MindSporeEngine

    return MindSporeEngine(is_raised=True)


def serve(engine: Engine, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the other side closes; only the last execution is kept."""
    kept: dict[int, Execution] = {}
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


def _answer(engine: Engine, request: dict[str, Any], kept: dict[int, Execution]) -> dict[str, Any]:
    if request["do"] == "forward":
        kept.clear()
        call = Call(ApiName(*request["api"]), request["framework"], request["arguments"], request["keywords"])
        execution = engine.forward(call, differentiate=request["differentiate"])
        kept[request["execution"]] = execution
        return {"outputs": [[output.path, output.value] for output in execution.outputs]}
    return {"gradients": kept[request["execution"]].gradients(request["incoming"])}


def main(name: str) -> None:
    """Serve the engine called `name` on the original stdout; whatever a framework prints goes to stderr instead."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(make_engine(name), sys.stdin.buffer, replies)
