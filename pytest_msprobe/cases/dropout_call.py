"""A recorded dropout as the linear operation that it was: what it drew shows in what it dropped."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from msprobe_collector.dump_format import ApiName, Direction, Dump
from pytest_msprobe.apis.random import random_api
from pytest_msprobe.cases.not_judged import NotJudged
from pytest_msprobe.cases.recorded_call import Incoming, RecordedCall, RecordedOutput
from pytest_msprobe.engines.protocol import Array, Call
from pytest_msprobe.engines.selection import Engines
from pytest_msprobe.numerics import BackwardError, Judgement, OutputPair, judge_output, measure

_STANDARD = BackwardError()


def is_dropout(api: ApiName, framework: str) -> bool:
    """Whether the API drops elements at random and scales the others."""
    found = random_api(api, framework)
    return found is not None and found.law is not None and found.law.name == "dropout"


class DropoutCall(RecordedCall):
    """Multiplies by what the recorded forward multiplied by: 0, or the scale of what it kept."""

    def __init__(self, dump: Dump, name: str, engines: Engines, *, with_backward: bool, max_memory_bytes: int) -> None:
        """See `RecordedCall`."""
        super().__init__(
            dump, name, engines, with_backward=with_backward, max_memory_bytes=max_memory_bytes, is_random=True
        )
        given = next(iter(self.tensor_arguments().values()), None)
        made = next((output.value for output in self.recorded_outputs() if hasattr(output.value, "dtype")), None)
        if given is None or made is None or getattr(made, "shape", None) != given.shape:
            raise NotJudged("skip", "random by nature, and what was dropped is not known")
        self.factors = _factors(given.astype(np.float64), np.asarray(made, np.float64))

    def outputs(self, direction: Direction) -> tuple[RecordedOutput, ...]:
        """See `RecordedCall`: the output, or the gradient of the input.

        Raises:
            NotJudged: a backward whose recorded gradients, incoming or outgoing, are missing or of another shape.
        """
        if direction == "forward":
            made = next(output.value for output in self.recorded_outputs() if hasattr(output.value, "dtype"))
            given = next(iter(self.tensor_arguments().values()))
            return (RecordedOutput("output.0", 0, np.asarray(made), given.astype(np.float64) * self.factors),)
        incoming = self.incoming(direction)
        gradients = self.recorded_gradients(incoming)
        first = next(((place, value) for place, value in enumerate(gradients) if value is not None), None)
        if first is None or not incoming or incoming[0] is None or incoming[0].shape != self.factors.shape:
            raise NotJudged("skip", "random by nature, and the dump holds no gradient")
        path = self.gradient_paths()[first[0]]
        return (RecordedOutput(path, 0, first[1], incoming[0].astype(np.float64) * self.factors),)

    def references(self, direction: Direction, call: Call, incoming: Incoming, variant: str) -> Mapping[str, Array]:
        """See `RecordedCall`: with what this call dropped.

        Raises:
            NotJudged: what the dropout is applied to is not an array.
        """
        given = incoming[0] if direction == "backward" else call.arguments[0]
        if not hasattr(given, "dtype"):
            raise NotJudged("skip", "random by nature, and its input is not known")
        path = self.outputs(direction)[0].path
        return {path: np.asarray(given, np.float64) * self.factors}

    def judge(self, direction: Direction, output: RecordedOutput) -> Judgement:
        """See `RecordedCall`: one multiplication is rounded."""
        metrics = measure(output.recorded, output.reference, off_bound=_STANDARD.off_bound)
        return judge_output(_STANDARD, metrics, lambda: OutputPair(output.recorded, output.reference, metrics))


def _factors(given: Array, made: Array) -> Array:
    kept = (made != 0) & (given != 0)
    scale = float(np.median(made[kept] / given[kept])) if kept.any() else 0.0
    # Of a zero nothing shows whether it was dropped.
    factors: Array = np.where(kept | (given == 0), scale, 0.0)
    return factors
