"""One recorded API call beside its float64 benchmark: values of the dump, values of the benchmark, and judged pairs.

A recorded dropout as the linear operation that it was: what it drew shows in what it dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from msprobe_collector.dump_format import ApiName, Direction, Dump, parse_api_name
from pytest_msprobe.apis.topics import random_api
from pytest_msprobe.cases.call_run import Executions, benchmark_result
from pytest_msprobe.cases.case import Case, NotJudged, read_case, read_incoming
from pytest_msprobe.cases.inputs import InputSource, drawn_arguments
from pytest_msprobe.cases.outputs import follow_tested_indices, in_best_order, in_one_order, selection
from pytest_msprobe.cases.second_runs import Bench, Opinions, gradient_values, output_values
from pytest_msprobe.engines.protocol import Array, Call, Engine, Execution, LeafPath, Output, map_leaves
from pytest_msprobe.engines.recorded import RecordedEngine
from pytest_msprobe.engines.selection import Engines
from pytest_msprobe.numerics import BackwardError, Judgement, Metrics, OutputPair, check_indices, judge_output, measure

_STANDARD = BackwardError()

Incoming = tuple["Array | None", ...]


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """One output or gradient.

    Attributes:
        path: place in the record: `output.0`.
        position: among the outputs that a benchmark gives.
        recorded: what the training run got.
        reference: what the benchmark gets from the recorded inputs, not rounded.
    """

    path: str
    position: int
    recorded: Array
    reference: Array


class RecordedCall:
    """An API call of a tensor dump. Holds its inputs and the benchmark's forwards until `close`."""

    def __init__(
        self,
        dump: Dump,
        name: str,
        engines: Engines,
        *,
        with_backward: bool,
        max_memory_bytes: int,
        is_random: bool = False,
    ) -> None:
        """The call `name` of `dump`; `is_random` for a class that knows what a random one drew.

        Raises:
            NotJudged: it cannot be run, its inputs are not in the dump, or it is random by nature.
        """
        api = parse_api_name(name)
        if not is_random and (random := random_api(api, dump.framework)) is not None:
            raise NotJudged("skip", random.reason or "random by nature")
        self._dump = dump
        self._engines = engines
        self._source = InputSource(str(dump.path), dump.tensors, 0)
        self.case: Case = read_case(
            dump, name, self._source, with_backward=with_backward, max_memory_bytes=max_memory_bytes
        )
        if drawn := drawn_arguments(self.case.forward):
            raise NotJudged("skip", f"the dump does not hold all inputs: {drawn}")
        self._executions = Executions()
        self._bench: Engine | None = None
        self._opinions: dict[Direction, Opinions] = {}

    def close(self) -> None:
        """Release all arrays and graphs."""
        self._executions.clear()
        self._opinions.clear()

    def incoming(self, direction: Direction) -> Incoming:
        """Incoming gradients; () for a forward. Raises NotJudged when the dump lacks them."""
        return read_incoming(self.case, self._source) if direction == "backward" else ()

    def outputs(self, direction: Direction) -> tuple[RecordedOutput, ...]:
        """Every tensor output (or gradient) that both the dump and the benchmark have.

        Raises:
            NotJudged: no benchmark can compute it, or it has another number of outputs.
        """
        return self._outputs() if direction == "forward" else self._gradients()

    def references(self, direction: Direction, call: Call, incoming: Incoming, variant: str) -> Mapping[str, Array]:
        """What the benchmark gets for other inputs, by path. Raises NotJudged."""
        if direction == "forward":
            paths = [output.path for output in self.outputs("forward")]
            outputs = self._ask(lambda execution: execution.outputs, call, variant)
            values: Sequence[Any] = [output.value for output in self._present(outputs)]
        else:
            paths = self.gradient_paths()
            values = self._ask(lambda execution: execution.gradients(incoming), call, variant)
        return {path: value for path, value in zip(paths, values) if path and hasattr(value, "dtype")}

    def judge(self, direction: Direction, output: RecordedOutput) -> Judgement:
        """Whether rounding explains what the recorded output is off by; indices by the values that they select."""
        if direction == "forward" and (found := self._judged_indices(output)) is not None:
            return found
        metrics = measure(output.recorded, output.reference, off_bound=_STANDARD.off_bound)

        def pair() -> OutputPair:
            return self._opinions_of(direction).pair(output.position, output.recorded, output.reference, metrics)

        return judge_output(_STANDARD, metrics, pair)

    def _opinions_of(self, direction: Direction) -> Opinions:
        """One for all outputs: the gradients of a perturbed run can be asked for once."""
        if direction not in self._opinions:
            results = output_values(self.case) if direction == "forward" else gradient_values
            assert self._bench is not None  # there is no output before a benchmark was found
            bench, incoming = Bench(self._bench, None), self.incoming(direction)
            self._opinions[direction] = Opinions(self.case, self._executions, bench, results, incoming=incoming)
        return self._opinions[direction]

    def tensor_arguments(self) -> dict[LeafPath, Array]:
        """Tensors among the arguments, by their place."""
        found: dict[LeafPath, Array] = {}

        def note(path: LeafPath, value: Any) -> None:
            if hasattr(value, "__array_interface__"):
                found[path] = value

        map_leaves(self.case.call, note)
        return found

    def with_tensors(self, tensors: Mapping[LeafPath, Array]) -> Call:
        """The call with other tensors at these places."""
        arguments, keywords = map_leaves(self.case.call, tensors.get)
        return replace(self.case.call, arguments=tuple(arguments), keywords=keywords)

    def _ask(self, result: Any, call: Call | None = None, variant: str = "") -> Any:
        benches = self._engines.benchmarks if self._bench is None else (self._bench,)
        self._bench, found = benchmark_result(
            benches, self.case, self._executions, result, choice=self._engines.choice, call=call, variant=variant
        )
        return found

    def _outputs(self) -> tuple[RecordedOutput, ...]:
        reference: tuple[Output, ...] = self._ask(lambda execution: execution.outputs)
        left_open = {output.path for output in reference if output.value is None}
        recorded = [output for output in self.recorded_outputs() if output.value is not None]
        left = self._present([output for output in recorded if output.path not in left_open])
        right = self._present(reference)
        if len(left) != len(right):
            raise NotJudged("skip", f"{len(left)} outputs recorded, but the benchmark has {len(right)}")
        return tuple(
            RecordedOutput(_path(mine), position, mine.value, theirs.value)  # type: ignore[arg-type]  # both are arrays
            for position, (mine, theirs) in enumerate(zip(left, right))
            if hasattr(mine.value, "__array_interface__") and hasattr(theirs.value, "__array_interface__")
        )

    def _gradients(self) -> tuple[RecordedOutput, ...]:
        incoming = self.incoming("backward")
        recorded = self.recorded_gradients(incoming)
        reference = self._ask(lambda execution: execution.gradients(incoming))
        reference = follow_tested_indices(self.case, reference, incoming, self.recorded_outputs)
        recorded = in_best_order(self.case, recorded, reference)
        return tuple(
            RecordedOutput(path, position, mine, theirs)
            for position, (path, mine, theirs) in enumerate(zip(self.gradient_paths(), recorded, reference))
            if path and mine is not None and theirs is not None
        )

    def gradient_paths(self) -> list[str]:
        """Places of the recorded gradients, by argument that is differentiated; "" for one without."""
        entries = self.case.pairing.entries
        return [f"output.{entries[path]}" if path in entries else "" for path in self.case.wanted]

    def _judged_indices(self, output: RecordedOutput) -> Judgement | None:
        outputs = self.recorded_outputs()
        chosen = selection(self.case.call, outputs)
        if chosen is None or output.recorded.dtype.kind not in "iu" or output.reference.dtype.kind not in "iu":
            return None
        metrics: Metrics = check_indices(
            chosen.source,
            chosen.flattened(output.recorded),
            chosen.flattened(output.reference),
            chosen.axis,
            unique_along_axis=chosen.described.is_selection,
            values=chosen.values,
            is_stable=chosen.is_stable,
        )
        return _STANDARD.judge(metrics)

    @property
    def _recorded(self) -> RecordedEngine:
        case = self.case
        return RecordedEngine(case.forward, case.backward, case.pairing, self._dump.tensors, str(self._dump.path))

    def recorded_gradients(self, incoming: Incoming) -> Incoming:
        """Recorded gradients by argument that is differentiated."""
        return self._recorded.forward(self.case.call, differentiate=self.case.wanted).gradients(incoming)

    def recorded_outputs(self) -> tuple[Output, ...]:
        """What the dump holds of the forward."""
        execution: Execution = self._recorded.forward(self.case.call, differentiate=())
        return execution.outputs

    def _present(self, outputs: Sequence[Output]) -> list[Output]:
        return in_one_order(self.case.call, [output for output in outputs if output.value is not None])


def _path(output: Output) -> str:
    return ".".join(("output", *map(str, output.path)))


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
