"""Calls and results between a process and its child: msgpack frames, arrays as their bytes. Nothing is unpickled."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import msgspec
import numpy as np

from msprobe_collector.dump_format import Dtype, array_dtype, find_dtype
from pytest_msprobe.engines.protocol import Array, NumpyArgument

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
    if isinstance(value, NumpyArgument):
        return {"~numpy": pack(value.array)}
    if isinstance(value, slice):
        return {"~slice": pack([value.start, value.stop, value.step])}
    if value is Ellipsis:
        return {"~ellipsis": None}
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return {"~int": str(value)}
    if isinstance(value, (tuple, list)):
        return [pack(item) for item in value]
    if isinstance(value, dict):
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


def _array(content: list[Any]) -> Array:
    name, shape, values = content
    dtype = find_dtype(name)
    target = array_dtype(dtype) if dtype is not None else None
    if target is None:
        raise ValueError(f"no array type {name}")
    return np.ndarray(tuple(shape), dtype=target, buffer=bytearray(values))


_TAGS: dict[str, Any] = {
    "~array": _array,
    "~dtype": find_dtype,
    "~numpy": lambda content: NumpyArgument(unpack(content)),
    "~slice": lambda content: slice(*unpack(content)),
    "~ellipsis": lambda content: Ellipsis,
    "~int": int,
    "~dict": _unpack_items,
}
