"""One API call, run by each engine forward and backward once, and the pairs of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, TypeVar, cast

import numpy as np

from msprobe_collector.dump_format import Direction, Dump, DumpError
from pytest_msprobe.apis.fact_table import IndexOutput, index_output, sorted_position
from pytest_msprobe.cases.case import Case, is_of_parts, read_case, read_incoming
from pytest_msprobe.cases.edge_cases import edge_case as constructed, refuse_lack_of_memory
from pytest_msprobe.cases.inputs import InputSource, RecordedEngine, best_order
from pytest_msprobe.engines.protocol import (
    CHANGED,
    Argument,
    Array,
    Call,
    Engine,
    Execution,
    NotJudged,
    Output,
    Unsupported,
    arrays_in,
    output_label,
)
from pytest_msprobe.engines.reference import ReferenceEngine
from pytest_msprobe.engines.selection import NO_TORCH, Engines
from pytest_msprobe.numerics.indices import check_indices, scatter_by_index
from pytest_msprobe.numerics.measurement import Metrics
from pytest_msprobe.support import is_installed, place_of, text_of

_Result = TypeVar("_Result")
Incoming = tuple["Array | None", ...]
#: Takes the forward outputs from an execution.
OUTPUTS: Callable[[Execution], tuple[Output, ...]] = attrgetter("outputs")
#: Bytes of the tensors of a call from which on the forward of a variant runs again rather than stays until `close`.
_LARGE = 1 << 22


@dataclass(frozen=True, slots=True)
class CapturedError:
    """What an API raised, as text: the exception itself would keep its frames, and their tensors, alive."""

    text: str
    place: str

    def __str__(self) -> str:
        return self.text


def attempt(action: Callable[[], _Result]) -> _Result | Unsupported | CapturedError:
    """The result of `action`, or what it raised in a form that keeps no frame, and so no tensor, alive.

    Raises:
        NotJudged: a tensor file of the dump is unusable.
    """
    try:
        return action()
    except Unsupported as error:
        return Unsupported(str(error))
    except DumpError as error:
        problem = str(error)
    except Exception as error:
        return CapturedError(text_of(error), place_of(error))
    raise NotJudged("error", problem, is_unreadable=True)


def result_or_none(outcome: _Result | Unsupported | CapturedError) -> _Result | None:
    """What `attempt` gives, where it is no failure; else None."""
    return None if isinstance(outcome, (Unsupported, CapturedError)) else outcome


class CallRun:
    """One API call of a dump: holds its inputs, and the forwards of engines with their graphs, until `close`.

    Attributes:
        case: the call.
    """

    def __init__(
        self,
        dump: Dump,
        name: str,
        *,
        with_backward: bool,
        max_memory_bytes: int,
        seed: int = 0,
        edge_case: str = "",
    ) -> None:
        """The call `name` of `dump`, or the edge case of this name made from it; `seed` is that of random inputs.

        Raises:
            NotJudged: it cannot or need not be run, or may need more memory.
        """
        self._dump = dump
        self._source = InputSource(str(dump.path), dump.tensors, seed)
        case = read_case(dump, name, self._source, with_backward=with_backward, max_memory_bytes=max_memory_bytes)
        self.case: Case = constructed(case, edge_case, max_memory_bytes) if edge_case else case
        self._forwards: dict[tuple[str, str], Execution | Unsupported | CapturedError] = {}

    @classmethod
    def of_case(cls, case: Case) -> CallRun:
        """A run of a call that stands in no dump."""
        made = cls.__new__(cls)
        made.case, made._forwards = case, {}
        return made

    def close(self) -> None:
        """Release all graphs and what they computed."""
        self._forwards.clear()

    def with_call(self, call: Call) -> CallRun:
        """A run of another call of the same API, of which nothing has run and no output is recorded."""
        other = copy(self)
        other.case = replace(self.case, call=call, forward=replace(self.case.forward, outputs=None))
        other._forwards = {}
        return other

    def incoming(self, direction: Direction) -> Incoming:
        """Recorded incoming gradients, read once, each in the shape of its output; () for a forward.

        Raises:
            NotJudged: the dump lacks them.
        """
        return self._incoming if direction == "backward" else ()

    @cached_property
    def _incoming(self) -> Incoming:
        return read_incoming(self.case, self._source)

    @cached_property
    def recorded(self) -> RecordedEngine:
        """The values of the dump as an engine."""
        case, dump, drawn = self.case, self._dump, self._source.drawn
        ended = "" if dump.ended_in is None else str(dump.ended_in)
        return RecordedEngine(
            case.forward, case.backward, case.pairing, dump.tensors, str(dump.path), drawn=drawn, ended=ended
        )

    def ask(
        self, engine: Engine, result: Callable[[Execution], _Result], *, call: Call | None = None, variant: str = ""
    ) -> _Result | Unsupported | CapturedError:
        """The `result` of the forward of `engine`, which runs once per `variant`, whatever its outcome.

        `call` stands for the case's own where other inputs are wanted, under the name `variant`. Of a large call only
        the forward of the case itself is kept: that of a variant, with its graph, takes as much memory again.

        Raises:
            NotJudged: a tensor file of the dump is unusable.
        """
        key = engine.label, variant
        execution = self._forwards.get(key)
        if execution is None:
            execution = attempt(partial(engine.forward, call or self.case.call, differentiate=self.case.wanted))
            if not variant or sum(array.nbytes for array in arrays_in(self.case.call).values()) < _LARGE:
                self._forwards[key] = execution
        if isinstance(execution, (Unsupported, CapturedError)):
            return execution
        return attempt(partial(result, execution))

    def outcomes(
        self,
        engines: Sequence[Engine],
        result: Callable[[Execution], _Result],
        *,
        call: Call | None = None,
        variant: str = "",
    ) -> Iterator[tuple[Engine, _Result | Unsupported | CapturedError]]:
        """What `ask` gives of each engine, which is run only when the caller comes to it, and not where it refuses."""
        for engine in engines:
            reason = engine.refusal(self.case.api, self.case.call.framework)
            yield engine, Unsupported(reason) if reason else self.ask(engine, result, call=call, variant=variant)

    def benchmark(
        self,
        engines: Engines,
        result: Callable[[Execution], _Result],
        *,
        benches: Sequence[Engine] | None = None,
        call: Call | None = None,
        variant: str = "",
    ) -> tuple[Engine, _Result]:
        """(engine, result) of the first benchmark that can run the call; one that cannot, or that raises, passes it on.

        The benchmarks are those of `engines`, or `benches` in their place; the rest is as for `ask`.

        Raises:
            NotJudged: a skip when none has such an API, an error when it raised.
        """
        case, refused, raised = self.case, [], []
        benches = engines.benchmarks if benches is None else benches
        for bench, outcome in self.outcomes(benches, result, call=call, variant=variant):
            if isinstance(outcome, Unsupported):
                refused.append(f"{bench.name}: {outcome}")
            elif not isinstance(outcome, CapturedError):
                return bench, outcome
            elif isinstance(bench, ReferenceEngine) and not case.constructed:
                raise NotJudged("error", f"benchmark ({bench.label}): {outcome} ({outcome.place})")
            else:
                raised.append(f"benchmark ({bench.label}): {outcome}")
        if raised and case.constructed:
            refuse_lack_of_memory(case, raised[0])
            raise NotJudged("skip", f"only the device accepts the inputs, which were {case.notes[-1]}: {raised[0]}")
        if raised and case.is_of_parts and is_of_parts(case.forward):
            raise NotJudged("skip", f"its arguments are not those of an operation on parts of tensors: {raised[0]}")
        if raised:
            raise NotJudged("error", "; ".join(raised))
        if not is_installed("torch") and engines.choice.bench == "auto":
            refused.append(NO_TORCH)
        raise NotJudged("skip", f"no benchmark: {'; '.join(refused)}")


# Outputs and gradients of both sides in one order, where several are right:
# - Outputs that may come in any order, and those that are indices, which are judged by the values that they select.
# - Gradients that may stand in several places: of selections (max, topk, ...) under ties, and of equal shapes.


def paired_outputs(
    call: Call, tested: Sequence[Output], reference: Sequence[Output]
) -> tuple[list[Output], list[Output]]:
    """The outputs of both sides that are compared, in one order; their numbers may differ.

    None on the tested side is not an output. None in the reference is one that it leaves open, such as the softmax
    statistics of a fused attention: it is not judged. Arguments that the reference changed count where the tested side
    has them, too.
    """
    left_open = {output.path for output in reference if output.value is None}
    compared, expected = in_one_order(call, [output for output in tested if output.path not in left_open], reference)
    if len(compared) < len(expected):
        expected = [output for output in expected if output.path[0] != CHANGED]
    return compared, expected


def in_one_order(call: Call, *sides: Sequence[Output]) -> list[list[Output]]:
    """The outputs of each side that are not None, in ascending order of values where `call` asks for no order.

    That is for `sorted=False`; any other call has them as they are. topk: values and their indices along the axis.
    unique: values, their counts, and inverse indices renumbered.
    """
    position = sorted_position(call.api)
    is_open = position is not None and _argument(call, position, "sorted") is False
    present = list(map(present_outputs, sides))
    return [_ordered(call, outputs) for outputs in present] if is_open else present


def present_outputs(outputs: Sequence[Output]) -> list[Output]:
    """The outputs that are not None."""
    return [output for output in outputs if output.value is not None]


def arrays_of(outputs: Sequence[Output]) -> list[Array]:
    """The outputs that are arrays."""
    return [cast("Array", output.value) for output in outputs if hasattr(output.value, "__array_interface__")]


def _ordered(call: Call, outputs: list[Output]) -> list[Output]:
    arrays = arrays_of(outputs)
    if len(arrays) < len(outputs) or not arrays:
        return outputs
    ordered = _unique(call, arrays) if call.api.short == "unique" else _top(call, arrays)
    return [replace(output, value=array) for output, array in zip(outputs, ordered)]


def _top(call: Call, arrays: list[Array]) -> list[Array]:
    axis = call.keywords.get("dim") if call.api.short == "top_k" else _argument(call, 2, "dim")
    if not arrays[0].ndim or any(array.shape != arrays[0].shape for array in arrays):
        return arrays
    along = axis if isinstance(axis, int) else -1
    order = np.argsort(_wide(arrays[0]), axis=along, kind="stable")
    return [np.take_along_axis(array, order, axis=along) for array in arrays]


def _unique(call: Call, arrays: list[Array]) -> list[Array]:
    dim = _argument(call, 4, "dim")
    values, *others = arrays
    if dim is not None or values.ndim != 1:
        return arrays
    order = np.argsort(_wide(values), kind="stable")
    has_inverse = _argument(call, 2, "return_inverse") is True
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    ordered: list[Any] = [values[order]]
    for number, array in enumerate(others):
        if number == 0 and has_inverse:
            is_index = bool(np.all((array >= 0) & (array < order.size)))
            ordered.append(place[array].astype(array.dtype) if is_index else array)
        else:
            ordered.append(array[order] if array.shape == values.shape else array)
    return ordered


def _wide(array: Array) -> Array:
    """Sortable: ml_dtypes sort as what they are, but not every NumPy can."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float64)


_AXIS_NAMES = ("dim", "axis")


def index_metrics(
    call: Call, label: str, actual: Array, expected: Array, tested: Callable[[], Sequence[Output]]
) -> Metrics | None:
    """What the values are off by that the indices `actual` select, compared with those that `expected` do.

    None where the output called `label` is not indices, or the call does not show what they select from. `tested`
    gives all outputs of the tested side.
    """
    if actual.dtype.kind not in "iu" or expected.dtype.kind not in "iu":
        return None
    described = index_output(call.api)
    if described is None or label != output_label((described.position,)):
        return None
    chosen = source_and_axis(call, described)
    if chosen is None:
        return None
    (source, axis), axes = chosen, described.flattened_axes
    values = _output_at(tested(), described.values_position)
    stable = described.stable_position
    return check_indices(
        source,
        _flattened(actual, axes),
        _flattened(expected, axes),
        axis,
        unique_along_axis=described.is_selection,
        values=None if values is None else _flattened(values, axes),
        is_stable=stable is not None and _argument(call, stable, "stable") is True,
    )


#: Keywords by which the value may be another one than any of the source.
_NOT_OF_SOURCE = frozenset({"initial", "where"})


def source_and_axis(call: Call, described: IndexOutput) -> tuple[Array, int | None] | None:
    """The tensor that the indices select from, and the axis; None when the call's arguments do not show them."""
    source = next(iter(call.arguments), call.keywords.get("input"))
    if not hasattr(source, "__array_interface__") or not _NOT_OF_SOURCE.isdisjoint(call.keywords):
        return None
    axis = _argument(call, described.axis_position, *_AXIS_NAMES)
    if axis is None:  # mindspore.ops.topk(x, k, dim=None) takes the last axis
        axis = described.default_axis
    if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
        return None
    if axis is None and described.values_position is not None:
        return None  # mindspore.ops.max(x) returns the maximum and always 0
    return _flattened(cast("Array", source), described.flattened_axes), axis


def _argument(call: Call, position: int, *names: str) -> Argument:
    value = next(iter(call.arguments[position:]), None)
    for name in names:
        value = call.named.get(name, value)
    return value


def _output_at(outputs: Sequence[Output], position: int | None) -> Array | None:
    value = next((output.value for output in outputs if output.path == (position,)), None)
    return cast("Array", value) if hasattr(value, "__array_interface__") else None


def _flattened(array: Any, axes: int) -> Array:
    if axes == 0 or array.ndim < axes:
        return cast("Array", array)
    kept, flat = array.shape[: array.ndim - axes], array.shape[array.ndim - axes :]
    return cast("Array", array.reshape(*kept, math.prod(flat)))  # not -1, which an empty array does not know


#: One per argument that is differentiated, in the order of `Case.wanted`, or per output that they come in by.
Gradients = tuple["Array | None", ...]
_SOURCE_PATHS = (("input", 0), ("kwargs", "input"))


def paired_gradients(
    case: Case,
    tested: Gradients,
    reference: Gradients,
    incoming: Gradients,
    outputs: Callable[[], Sequence[Output] | None],
    *,
    are_recorded: bool,
) -> tuple[Gradients, Gradients]:
    """(tested, reference) gradients, each at the place where it is compared.

    The benchmark's gradient of a tensor that the call selects from is `incoming` scattered to the tested indices: the
    forward judges these, and if they are right, so is this gradient, also where the benchmark chose another of equal
    values. Tested gradients that `are_recorded` and that nothing but values tells apart stand where they fit best.

    `outputs` gives the tested ones, where they are known, and is asked only for a call that selects.
    """
    reference = _following_tested_indices(case, reference, incoming, outputs)
    if are_recorded:
        tested = _in_best_order(case, tested, reference)
    return tested, reference


def _following_tested_indices(
    case: Case, reference: Gradients, incoming: Gradients, outputs: Callable[[], Sequence[Output] | None]
) -> Gradients:
    described = index_output(case.api)
    if described is None or described.values_position is None or not incoming or incoming[0] is None:
        return reference
    tested = outputs() or ()
    chosen, indices = source_and_axis(case.call, described), _output_at(tested, described.position)
    if chosen is None or indices is None or indices.dtype.kind not in "iu":
        return reference
    (source, axis), axes = chosen, described.flattened_axes
    scattered = scatter_by_index(_flattened(incoming[0], axes), source, _flattened(indices, axes), axis)
    if scattered is None:
        return reference
    gradients = list(reference)
    for place, (path, gradient) in enumerate(zip(case.wanted, reference)):
        if gradient is not None and path in _SOURCE_PATHS and gradient.size == scattered.size:
            gradients[place] = scattered.reshape(gradient.shape)
    return tuple(gradients)


def _in_best_order(case: Case, tested: Gradients, reference: Gradients) -> Gradients:
    ordered = list(tested)
    for group in case.pairing.interchangeable:
        places = [index for index, path in enumerate(case.wanted) if path in group and tested[index] is not None]
        gradients = [array for index in places if (array := tested[index]) is not None]
        expected = [array for index in places if (array := reference[index]) is not None]
        if len(gradients) == len(expected):
            for place, chosen in zip(places, best_order(gradients, expected)):
                ordered[place] = gradients[chosen]
    return tuple(ordered)
