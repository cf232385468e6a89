"""A record from its first value to its end."""

from __future__ import annotations

from typing import Any

import numpy as np

from msprobe_collector.dump_format import Direction
from msprobe_collector.dump_format.writing.encoding import RecordText
from msprobe_collector.dump_format.writing.framework_values import TensorValues


class OpenRecord:
    """A record that has begun: its parts as text (or, when another thread writes it, as copied values)."""

    __slots__ = ("direction", "fault", "is_ended", "is_kept", "lists_of_one", "name", "parts", "stack", "text")

    def __init__(self, name: str, direction: Direction, *, is_kept: bool, saves: bool) -> None:
        self.name = name
        self.direction = direction
        self.is_kept = is_kept
        self.text = RecordText(name, saves=saves)
        self.parts: list[tuple[str, str, Any]] = []
        self.stack = ""
        #: What went wrong while it was taken; its reader learns that parts may be missing.
        self.fault = ""
        self.is_ended = False
        #: Each part is written as a list that holds it.
        self.lists_of_one = False


def held_bytes(value: Any) -> int:
    """What copied values take in memory, about."""
    if isinstance(value, TensorValues):
        return 0 if value.array is None else value.array.nbytes
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (list, tuple)):
        return sum(held_bytes(item) for item in value) + 64
    if isinstance(value, dict):
        return sum(held_bytes(item) for item in value.values()) + 64
    return 64
