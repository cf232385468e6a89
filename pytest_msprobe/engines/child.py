"""An engine in a process of its own, perhaps with another interpreter.

Needed where one process cannot hold both sides: a MindSpore CPU benchmark beside a MindSpore Ascend device, or a real
PyTorch beside an MSAdapter `torch`.

Calls and results between a process and its child: msgpack frames, arrays as their bytes. Nothing is unpickled.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np

from msprobe_collector import __file__ as _collector_file
from msprobe_collector.dump_format import ApiName, Dtype, array_dtype, find_dtype
from pytest_msprobe.engines.process import not_counted
from pytest_msprobe.engines.protocol import Array, Call, Engine, LeafPath, NumpyArgument, Output, Unsupported

_LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write one message. Raises BrokenPipeError when nobody reads any more."""
    frame = msgspec.msgpack.encode(pack(message))
    stream.write(_LENGTH.pack(len(frame)))
    stream.write(frame)
    stream.flush()


def receive(stream: BinaryIO) -> dict[str, Any]:
    """Read one message.

    Raises:
        EOFError: the other side has gone, perhaps in the middle of the message.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    frame = stream.read(length)
    if len(frame) < length:
        raise EOFError
    message: dict[str, Any] = unpack(msgspec.msgpack.decode(frame))
    return message


def pack(value: Any) -> Any:
    """`value` in builtin types; what msgpack has no word for becomes a one-key object."""
    if isinstance(value, np.ndarray):
        native = value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
        return {"~array": [value.dtype.name, list(value.shape), native.tobytes()]}
    if isinstance(value, Dtype):
        return {"~dtype": value.name}
    if isinstance(value, _SENT_BY_FIELDS):
        names = (field.name for field in fields(value) if field.init)  # the others follow from these
        return {f"~{type(value).__name__}": {name: pack(getattr(value, name)) for name in names}}
    if isinstance(value, slice):
        return {"~slice": pack([value.start, value.stop, value.step])}
    if value is Ellipsis:
        return {"~ellipsis": None}
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return {"~int": str(value)}
    if isinstance(value, (tuple, list)):
        return [pack(item) for item in value]
    if isinstance(value, Mapping):
        packed = {key: pack(item) for key, item in value.items()}
        # One that looks like our own words is wrapped, so that a user's {"~int": "x"} comes back as it was.
        return {"~dict": packed} if len(packed) == 1 and next(iter(packed)) in _TAGS else packed
    return value


def unpack(value: Any) -> Any:
    """The inverse of `pack`; lists come back as tuples."""
    if isinstance(value, list):
        return tuple(unpack(item) for item in value)
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, content),) = value.items()
        if tag in _TAGS:
            return _TAGS[tag](content)
    return _unpack_items(value)


def _unpack_items(content: dict[str, Any]) -> dict[str, Any]:
    return {key: unpack(item) for key, item in content.items()}


def _of_fields(kind: Callable[..., Any], content: dict[str, Any]) -> Any:
    return kind(**_unpack_items(content))


def _array(content: list[Any]) -> Array:
    name, shape, values = content
    target = array_dtype(find_dtype(name))
    if target is None:
        raise ValueError(f"no array type {name}")
    return np.ndarray(tuple(shape), dtype=target, buffer=bytearray(values))


#: Classes whose instances are sent as all their fields, by name: a new field needs no line here.
_SENT_BY_FIELDS = (ApiName, Call, NumpyArgument, Output)
_TAGS: dict[str, Callable[[Any], Any]] = {
    **{f"~{kind.__name__}": partial(_of_fields, kind) for kind in _SENT_BY_FIELDS},
    "~array": _array,
    "~dtype": find_dtype,
    "~slice": lambda content: slice(*unpack(content)),
    "~ellipsis": lambda content: Ellipsis,
    "~int": int,
    "~dict": _unpack_items,
}


#: Lets the child import our two packages and nothing else of our environment: with another interpreter, the NumPy or
#: PyTorch of ours would not even load there.
_START = Path(__file__).with_name("child_start.txt").read_text(encoding="utf-8")
_PLACES = (str(Path(__file__).parents[2]), str(Path(_collector_file).parents[1]))
_NEEDED_THERE = "numpy, msgspec and ml_dtypes"


class ChildError(RuntimeError):
    """The API raised inside the child; the text is the child's."""


class ChildEngine:
    """Stands for an engine of this process and runs it in a child.

    Attributes:
        name, label: those of the engine that runs in it, the label with "in a child process".
    """

    def __init__(self, engine: Engine, *, python: str | None = None) -> None:
        """A child that runs the same engine as `engine`; it starts when first needed, with `python` or our Python."""
        self._engine = engine
        self._python = python or sys.executable
        self._process: subprocess.Popen[bytes] | None = None
        self._last_execution = 0
        self._has_answered = False
        self.name = engine.name
        self.label = f"{engine.label}, in a child process"

    def refusal(self, api: ApiName, framework: str) -> str | None:
        """Refusal of the engine that runs in the child process."""
        return self._engine.refusal(api, framework)

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> ChildExecution:
        """See `Engine.forward`. A child that dies is an error of this call; the next call starts a new one."""
        self._last_execution += 1
        request = {"do": "forward", "execution": self._last_execution, "call": call, "differentiate": differentiate}
        return ChildExecution(self._ask, self._last_execution, self._ask(request)["outputs"])

    def close(self) -> None:
        """End the child."""
        self._end()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        is_new = self._process is None
        process = self._running()
        try:
            if is_new:
                with not_counted():
                    _exchange(process, {"do": "start"})
            reply = _exchange(process, request)
        except (EOFError, OSError):
            code = self._end()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            hint = "" if self._has_answered else f"; that Python needs {_NEEDED_THERE} beside {self._engine.name}"
            raise ChildError(f"the child process of {self._engine.label} died with {how}{hint}") from None
        self._has_answered = True
        if "unsupported" in reply:
            raise Unsupported(reply["unsupported"])
        if "error" in reply:
            raise ChildError(reply["error"])
        return reply

    def _end(self) -> int:
        """Close the pipes, on which the child ends by itself, and reap it; its exit code, 0 without a child."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):  # a request that a dead child never read
                cast(BinaryIO, stream).close()
        try:
            return process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    [self._python, "-c", _START, self._engine.name, *_PLACES],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            except OSError as error:
                raise Unsupported(
                    f"{self._python} cannot be started: {error.strerror}; see --msprobe-bench-python"
                ) from None
        return self._process


def _exchange(process: subprocess.Popen[bytes], request: dict[str, Any]) -> dict[str, Any]:
    send(cast(BinaryIO, process.stdin), request)
    return receive(cast(BinaryIO, process.stdout))


class ChildExecution:
    """A forward that the child has run and keeps until another API call."""

    def __init__(self, ask: Callable[[dict[str, Any]], Any], number: int, outputs: tuple[Output, ...]) -> None:
        self._ask = ask
        self._number = number
        self.outputs = outputs

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """See `Execution.gradients`."""
        return tuple(self._ask({"do": "gradients", "execution": self._number, "incoming": incoming})["gradients"])
