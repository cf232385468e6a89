"""One recorded API call beside its float64 benchmark: values of the dump, values of the benchmark, and judged pairs.

A recorded dropout as the linear operation that it was: what it drew shows in what it dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import methodcaller
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from msprobe_collector.dump_format import ApiName, Direction, Dump, parse_api_name
from msprobe_collector.dump_format.values import OTHER_GRADIENTS, OUTPUT
from pytest_msprobe.apis.fact_table import adds_up_narrowly, random_api
from pytest_msprobe.cases.call_run import (
    OUTPUTS,
    CallRun,
    Incoming,
    in_one_order,
    index_metrics,
    paired_gradients,
    paired_outputs,
)
from pytest_msprobe.cases.inputs import drawn_arguments
from pytest_msprobe.cases.second_runs import Bench, ExtraRuns
from pytest_msprobe.engines.protocol import (
    Array,
    Call,
    Engine,
    Execution,
    LeafPath,
    NotJudged,
    Output,
    Unsupported,
    arrays_in,
    output_label,
    with_leaves,
)
from pytest_msprobe.engines.selection import Engines
from pytest_msprobe.numerics.dtypes import unit_roundoff
from pytest_msprobe.numerics.expected import Roundoffs
from pytest_msprobe.numerics.judgement import Judgement, OutputPair, judge_output
from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.patterns import find_pattern
from pytest_msprobe.numerics.standards.backward_error import BackwardError

_STANDARD = BackwardError()
_NARROW = frozenset(map(np.dtype, (np.float16, ml_dtypes.bfloat16)))
_Result = TypeVar("_Result")


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


class RecordedCall(CallRun):
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
        random = random_api(parse_api_name(name), dump.framework)
        if random is not None and not is_random:
            raise NotJudged("skip", random.reason or "random by nature")
        super().__init__(dump, name, with_backward=with_backward, max_memory_bytes=max_memory_bytes)
        if drawn := drawn_arguments(self.case.forward):
            raise NotJudged("skip", f"the dump does not hold all inputs: {drawn}")
        self._engines = engines
        self._bench: Engine | None = None
        self._extra_runs: dict[tuple[Direction, bool], ExtraRuns] = {}

    def close(self) -> None:
        """Release all arrays and graphs."""
        super().close()
        self._extra_runs.clear()

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
            (outputs,) = in_one_order(self.case.call, self._benchmark(OUTPUTS, call, variant))
            values: Sequence[Any] = [output.value for output in outputs]
        else:
            paths = self.gradient_paths()
            values = self._benchmark(methodcaller("gradients", incoming), call, variant)
        return {path: value for path, value in zip(paths, values) if path and hasattr(value, "dtype")}

    def judge(self, direction: Direction, output: RecordedOutput) -> Judgement:
        """Whether rounding explains what the recorded output is off by; indices by the values that they select."""
        call, compared = self.case.call, (output.recorded, output.reference)
        if direction == "forward":
            indices = index_metrics(
                call, output.path, *compared, lambda: in_one_order(call, self.recorded_outputs())[0]
            )
            if indices is not None:
                return _STANDARD.judge(indices)
        metrics = measure(*compared, off_bound=_STANDARD.off_bound)
        standard = self._standard(direction, output)

        def judged(*, is_composite: bool = False) -> Judgement:
            extra = self._extra(direction, is_composite=is_composite)
            return judge_output(standard, metrics, lambda: extra.pair(output.position, *compared, metrics))

        judgement = judged()
        # A kernel that rounds inside as its tensors do is inaccurate in single elements, and no reason why runs differ.
        return judged(is_composite=True) if judgement.status == "error" and self._is_roundoff(output) else judgement

    def pattern(self, direction: Direction, output: RecordedOutput) -> str:
        """What the elements of an output that rounding does not explain have in common.

        "" where they are everywhere and follow no rule.
        """
        compared = output.recorded, output.reference
        tolerance: Array | float = 0.0
        if output.recorded.dtype.kind not in "iub":
            metrics = measure(*compared, off_bound=_STANDARD.off_bound)
            pair = self._extra(direction, is_composite=False).pair(output.position, *compared, metrics)
            tolerance = self._standard(direction, output).tolerances(pair)
        pattern = find_pattern(*compared, tolerance)
        return "" if pattern.kind in ("none", "noise") else str(pattern)

    def _is_roundoff(self, output: RecordedOutput) -> bool:
        """Whether an output of a call in a narrow dtype is as a whole as near to the benchmark as that allows."""
        dtypes = _NARROW & {array.dtype for array in self.tensor_arguments().values()}
        if not dtypes:
            return False
        unit = max(map(unit_roundoff, dtypes))
        with np.errstate(all="ignore"):
            error = np.linalg.norm(output.recorded.astype(np.float64).reshape(-1) - output.reference.reshape(-1))
            return bool(error <= Roundoffs.RIGHT_OUTPUT * unit * np.linalg.norm(output.reference))

    def _standard(self, direction: Direction, output: RecordedOutput) -> BackwardError:
        """What explains errors: of sums over the elements of an incoming gradient also those of narrow sums."""
        call, incoming = self.case.call, self.incoming(direction)
        arrays = [array for array in incoming if array is not None]
        summed = max(arrays, key=lambda array: array.size, default=None)
        if summed is None or not 0 < output.recorded.size < summed.size or summed.dtype not in _NARROW:
            return _STANDARD
        if not adds_up_narrowly(call.api, call.framework):
            return _STANDARD
        count = -(-summed.size // output.recorded.size)
        return replace(_STANDARD, narrow_sums=(count, unit_roundoff(summed.dtype)))

    def tensor_arguments(self) -> dict[LeafPath, Array]:
        """Tensors among the arguments, by their place."""
        return arrays_in(self.case.call)

    def with_tensors(self, tensors: Mapping[LeafPath, Array]) -> Call:
        """The call with other tensors at these places."""
        return with_leaves(self.case.call, tensors.get)

    def gradient_paths(self) -> list[str]:
        """Places of the recorded gradients, by argument that is differentiated; "" for one without."""
        paths = dict.fromkeys(self.case.wanted, "")
        for path, entry in self.case.pairing.entries.items():
            paths[path] = f"{OTHER_GRADIENTS if isinstance(entry, str) else OUTPUT}.{entry}"
        return [paths[path] for path in self.case.wanted]

    def recorded_gradients(self, incoming: Incoming) -> Incoming:
        """Recorded gradients by argument that is differentiated."""
        return self._recorded.gradients(incoming)

    def recorded_outputs(self) -> tuple[Output, ...]:
        """What the dump holds of the forward."""
        return self._recorded.outputs

    @cached_property
    def _recorded(self) -> Execution:
        return self.recorded.forward(self.case.call, differentiate=self.case.wanted)

    def _benchmark(
        self, result: Callable[[Execution], _Result], call: Call | None = None, variant: str = ""
    ) -> _Result:
        """The `result` of the benchmark: the first that can, and that one from then on."""
        benches = None if self._bench is None else (self._bench,)
        self._bench, outcome = self.benchmark(self._engines, result, benches=benches, call=call, variant=variant)
        return outcome

    def _outputs(self) -> tuple[RecordedOutput, ...]:
        reference = self._benchmark(OUTPUTS)
        recorded, computed = paired_outputs(self.case.call, self.recorded_outputs(), reference)
        if len(recorded) != len(computed):
            raise NotJudged("skip", f"{len(recorded)} outputs recorded, but the benchmark has {len(computed)}")
        return tuple(
            RecordedOutput(output_label(mine.path), position, mine.value, theirs.value)  # type: ignore[arg-type]  # both are arrays
            for position, (mine, theirs) in enumerate(zip(recorded, computed))
            if hasattr(mine.value, "__array_interface__") and hasattr(theirs.value, "__array_interface__")
        )

    def _gradients(self) -> tuple[RecordedOutput, ...]:
        incoming = self.incoming("backward")
        recorded = self.recorded_gradients(incoming)
        reference = self._benchmark(methodcaller("gradients", incoming))
        recorded, reference = paired_gradients(
            self.case, recorded, reference, incoming, self.recorded_outputs, are_recorded=True
        )
        return tuple(
            RecordedOutput(path, position, mine.reshape(theirs.shape), theirs)
            for position, (path, mine, theirs) in enumerate(zip(self.gradient_paths(), recorded, reference))
            if path
            and mine is not None
            and theirs is not None
            and (mine.shape == theirs.shape or _without_ones(mine) == _without_ones(theirs))
        )

    def _extra(self, direction: Direction, *, is_composite: bool) -> ExtraRuns:
        """One for all outputs: the gradients of a perturbed run can be asked for once."""
        key = direction, is_composite
        if key not in self._extra_runs:
            assert self._bench is not None  # there is no output before a benchmark was found
            bench, incoming = Bench(self._bench, None), self.incoming(direction)
            self._extra_runs[key] = ExtraRuns(self, bench, incoming, is_composite=is_composite)
        return self._extra_runs[key]


def _without_ones(array: Array) -> list[int]:
    """The shape that a gradient has on its way through views that add axes: the existing tool records it there."""
    return [size for size in array.shape if size != 1]


def is_dropout(api: ApiName, framework: str) -> bool:
    """Whether the API drops elements at random and scales the others."""
    random = random_api(api, framework)
    return random is not None and random.law is not None and random.law.name == "dropout"


class DropoutCall(RecordedCall):
    """Multiplies by what the recorded forward multiplied by: 0, or the scale of what it kept.

    Of an element that is 0 its output does not show whether it was dropped: its gradient does, or another run.
    """

    def __init__(self, dump: Dump, name: str, engines: Engines, *, with_backward: bool, max_memory_bytes: int) -> None:
        """See `RecordedCall`."""
        super().__init__(
            dump, name, engines, with_backward=with_backward, max_memory_bytes=max_memory_bytes, is_random=True
        )
        array = next(iter(self.tensor_arguments().values()), None)
        made = next((output.value for output in self.recorded_outputs() if hasattr(output.value, "dtype")), None)
        if array is None or made is None or getattr(made, "shape", None) != array.shape:
            raise NotJudged("skip", "random by nature, and what was dropped is not known")
        self._shows = array != 0
        kept = (np.asarray(made) != 0) & self._shows
        quotients = np.asarray(made, np.float64)[kept] / array[kept].astype(np.float64)
        # A quotient of few digits is rounded.
        self._scale = float(np.median(quotients)) if kept.any() else 0.0
        self._is_kept = kept | (~self._shows & self._has_gradient(with_backward=with_backward))

    def _has_gradient(self, *, with_backward: bool) -> Array:
        """Where the gradient shows that an element was kept; everywhere without one."""
        if with_backward and not self._shows.all():
            with suppress(NotJudged, Unsupported):
                gradient = self._gradient()[1]
                if gradient.shape == self._shows.shape:
                    is_kept: Array = gradient != 0
                    return is_kept
        return np.ones_like(self._shows)

    def drops_as(self, other: DropoutCall) -> bool:
        """Whether both drop the same of the elements that show it in both; then each learns the rest from the other."""
        if self._shows.shape != other._shows.shape:
            return False
        both = self._shows & other._shows
        if not np.array_equal(self._is_kept[both], other._is_kept[both]):
            return False
        either = np.where(other._shows, other._is_kept, self._is_kept | other._is_kept)
        self._is_kept = other._is_kept = np.where(self._shows, self._is_kept, either)
        return True

    def outputs(self, direction: Direction) -> tuple[RecordedOutput, ...]:
        """See `RecordedCall`: the output, or the gradient of the input.

        Raises:
            NotJudged: a backward whose recorded gradients, incoming or outgoing, are missing or of another shape.
        """
        if direction == "forward":
            made = next(output.value for output in self.recorded_outputs() if hasattr(output.value, "dtype"))
            array = next(iter(self.tensor_arguments().values()))
            return (RecordedOutput("output.0", 0, np.asarray(made), self._dropped(array)),)
        path, gradient = self._gradient()
        return (RecordedOutput(path, 0, gradient, self._dropped(self.incoming(direction)[0])),)

    def references(self, direction: Direction, call: Call, incoming: Incoming, variant: str) -> Mapping[str, Array]:
        """See `RecordedCall`: with what this call dropped.

        Raises:
            NotJudged: what the dropout is applied to is not an array.
        """
        array = incoming[0] if direction == "backward" else call.arguments[0]
        if not hasattr(array, "dtype"):
            raise NotJudged("skip", "random by nature, and its input is not known")
        path = "output.0" if direction == "forward" else self._gradient()[0]
        return {path: self._dropped(array)}

    def _gradient(self) -> tuple[str, Array]:
        """The recorded gradient, with its place."""
        incoming = self.incoming("backward")
        gradients = self.recorded_gradients(incoming)
        first = next(((place, value) for place, value in enumerate(gradients) if value is not None), None)
        if first is None or not incoming or incoming[0] is None or incoming[0].shape != self._shows.shape:
            raise NotJudged("skip", "random by nature, and the dump holds no gradient")
        return self.gradient_paths()[first[0]], first[1]

    def _dropped(self, array: Any) -> Array:
        """`array` with its dropped elements 0 and the others scaled, float64."""
        dropped: Array = np.asarray(array, np.float64) * np.where(self._is_kept, self._scale, 0.0)
        return dropped

    def judge(self, direction: Direction, output: RecordedOutput) -> Judgement:
        """See `RecordedCall`: one multiplication is rounded."""
        metrics = measure(output.recorded, output.reference, off_bound=_STANDARD.off_bound)
        return judge_output(_STANDARD, metrics, lambda: OutputPair(output.recorded, output.reference, metrics))
