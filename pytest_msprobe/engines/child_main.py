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

#: A forward, and the same for perturbed inputs, some of which may have to be made anew within the inputs' range.
_MOST_EXECUTIONS = 5


def make_engine(name: str) -> Engine:
    """The float64 CPU engine called `name`."""
    if name == "torch":
        from pytest_msprobe.engines.torch_engine import TorchEngine

        return TorchEngine(is_raised=True)
    from pytest_msprobe.engines.mindspore_engine import MindSporeEngine

    return MindSporeEngine(is_raised=True)


def serve(engine: Engine, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the other side closes; the last executions of one API call are kept."""
    kept = _Kept()
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


class _Kept:
    """Forwards of the API call that is being checked: its own and those for perturbed inputs."""

    def __init__(self) -> None:
        self._api: ApiName | None = None
        self._executions: dict[int, Execution] = {}

    def make_room(self, api: ApiName) -> None:
        """Let go of another call's executions, and of the oldest."""
        if api != self._api:
            self._executions.clear()
        self._api = api
        while len(self._executions) >= _MOST_EXECUTIONS:
            del self._executions[next(iter(self._executions))]

    def add(self, number: int, execution: Execution) -> None:
        self._executions[number] = execution

    def __getitem__(self, number: int) -> Execution:
        return self._executions[number]


def _answer(engine: Engine, request: dict[str, Any], kept: _Kept) -> dict[str, Any]:
    if request["do"] == "start":
        with suppress(ImportError):  # the first forward says so
            load_framework(engine.name)
        return {}
    if request["do"] == "forward":
        call = Call(
            ApiName(*request["api"]),
            request["framework"],
            request["arguments"],
            request["keywords"],
            request["saved_roundoff"],
            request["saved_seed"],
            request["arithmetic_roundoff"],
            request["attributes"],
        )
        kept.make_room(call.api)
        execution = engine.forward(call, differentiate=request["differentiate"])
        kept.add(request["execution"], execution)
        return {"outputs": [[output.path, output.value] for output in execution.outputs]}
    return {"gradients": kept[request["execution"]].gradients(request["incoming"])}


def main(name: str) -> None:
    """Serve the engine called `name` on the original stdout; whatever a framework prints goes to stderr instead."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(make_engine(name), sys.stdin.buffer, replies)
