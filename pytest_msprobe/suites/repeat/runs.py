"""The results of all runs of one direction of an API call, equal ones once."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from pytest_msprobe.cases.executions import Raised
from pytest_msprobe.engines.protocol import OutputValue, Unsupported
from pytest_msprobe.numerics.bits import same_bytes

#: The outputs of a run; or why there are none.
Outcome = tuple[OutputValue, ...] | Raised | Unsupported

#: Different results that are kept, so that they can be described; more are only counted.
_KEPT = 4
#: Parts of an output that have a digest of their own.
_BLOCKS = 32


@dataclass(slots=True)
class Result:
    """One of the different results.

    Attributes:
        outcome: what the runs returned.
        runs: their numbers, from 1 on.
    """

    outcome: Outcome
    runs: list[int]


@dataclass(slots=True)
class Runs:
    """What the runs of one direction gave.

    Attributes:
        labels: of the outputs of the first run.
        results: the different ones, in order of appearance, `_KEPT` at most.
        others: numbers of the runs that gave none of these.
        overwritten: numbers of the runs that wrote into memory beside their own.
    """

    labels: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    overwritten: list[int] = field(default_factory=list)

    def add(self, run: int, outcome: Outcome) -> None:
        """Take the outcome of a run; its arrays are kept when no earlier one was the same."""
        for result in self.results:
            if _is_same(result.outcome, outcome):
                result.runs.append(run)
                return
        if len(self.results) < _KEPT:
            self.results.append(Result(outcome, [run]))
        else:
            self.others.append(run)

    @property
    def usual(self) -> Result:
        """The result of most runs, the first one among equals."""
        return max(self.results, key=lambda result: len(result.runs))


def _is_same(one: Outcome, other: Outcome) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same_bytes, one, other))
    return type(one) is type(other) and failure_text(one) == failure_text(other)


def failure_text(outcome: Outcome) -> str:
    """What a run raised; "" for one that has a result."""
    if isinstance(outcome, tuple):
        return ""
    return outcome.text if isinstance(outcome, Raised) else str(outcome)


def content_digest(labels: Sequence[str], outputs: Sequence[OutputValue]) -> tuple[str, list[dict[str, Any]]]:
    """(16 hexadecimal digits that are equal for equal outputs, their parts with digests of their own).

    The second value is in builtin types: label, dtype, shape and blocks of each output.
    """
    whole = blake2b(digest_size=8)
    parts = []
    for label, value in zip(labels, outputs):
        array = value if isinstance(value, np.ndarray) else None
        flat = None if array is None else array.reshape(-1)
        shape = [] if array is None else list(array.shape)
        length = 1 if flat is None else max(1, -(-flat.size // _BLOCKS))
        pieces = (
            [repr(value).encode()]
            if flat is None
            else [flat[start : start + length].tobytes() for start in range(0, flat.size, length)]
        )
        blocks = [zlib.crc32(piece) for piece in pieces]
        described = f"{label} {type(value).__name__ if flat is None else flat.dtype} {shape}"
        whole.update(described.encode())
        for piece in pieces:
            whole.update(piece)
        parts.append({"label": label, "shape": shape, "length": length, "blocks": blocks})
    return whole.hexdigest(), parts
