"""The results of all runs of one direction of an API call, equal ones once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import numpy as np
from xxhash import xxh3_64, xxh32_intdigest

from pytest_msprobe.cases.executions import Raised
from pytest_msprobe.engines.protocol import OutputValue, Unsupported
from pytest_msprobe.numerics.bits import bytes_of, content_of, stands_by_columns

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
        content: what only an equal outcome has, output by output.
        runs: their numbers, from 1 on.
    """

    outcome: Outcome
    content: tuple[object, ...]
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
    _by_columns: list[bool] = field(default_factory=list, init=False)

    def add(self, run: int, outcome: Outcome) -> None:
        """Take the outcome of a run; its arrays are kept when no earlier one was the same."""
        content = self._content(outcome)
        for result in self.results:
            if result.content == content:
                result.runs.append(run)
                return
        if len(self.results) < _KEPT:
            self.results.append(Result(outcome, content, [run]))
        else:
            self.others.append(run)

    @property
    def changed(self) -> list[int]:
        """Numbers of the runs whose result is another one by now: something wrote into its memory."""
        return [result.runs[0] for result in self.results if self._content(result.outcome) != result.content]

    @property
    def usual(self) -> Result:
        """The result of most runs, the first one among equals."""
        return max(self.results, key=lambda result: len(result.runs))

    def _content(self, outcome: Outcome) -> tuple[object, ...]:
        """What only an equal outcome has: each output is read in the order in which that of the first run stands."""
        if not isinstance(outcome, tuple):
            return type(outcome), failure_text(outcome)
        if not self._by_columns:
            self._by_columns = [stands_by_columns(value) for value in outcome]
        orders = chain(self._by_columns, repeat(False))  # a run may return more than the first one
        return tuple([content_of(value, by_columns=by_columns) for value, by_columns in zip(outcome, orders)])


def failure_text(outcome: Outcome) -> str:
    """What a run raised; "" for one that has a result."""
    if isinstance(outcome, tuple):
        return ""
    return outcome.text if isinstance(outcome, Raised) else str(outcome)


def content_digest(labels: Sequence[str], outputs: Sequence[OutputValue]) -> tuple[str, list[dict[str, Any]]]:
    """(16 hexadecimal digits that are equal for equal outputs, their parts with digests of their own).

    The second value is in builtin types: label, dtype, shape and blocks of each output.
    """
    whole = xxh3_64()
    parts = []
    for label, value in zip(labels, outputs):
        array = value if isinstance(value, np.ndarray) else None
        shape = [] if array is None else list(array.shape)
        held = memoryview(repr(value).encode()) if array is None else bytes_of(array).data
        length = 1 if array is None else max(1, -(-array.size // _BLOCKS))
        step = len(held) if array is None else length * array.itemsize
        blocks = [xxh32_intdigest(held[start : start + step]) for start in range(0, len(held), step)]
        whole.update(f"{label} {type(value).__name__ if array is None else array.dtype} {shape}".encode())
        whole.update(held)
        parts.append({"label": label, "shape": shape, "length": length, "blocks": blocks})
    return whole.hexdigest(), parts
