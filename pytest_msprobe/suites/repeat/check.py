"""One API call run again and again on one device, with the same inputs and with other memory around it.

With --msprobe-batch also in other batches, alone, halved, doubled, in other order: are its rows
the same to the bit?
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from msprobe_collector.dump_format import ApiName, Direction, Dump
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import Term, documented_difference, read_terms
from pytest_msprobe.cases.call_run import CallRun, CapturedError, Incoming, attempt
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.inputs import drawn_arguments
from pytest_msprobe.engines.protocol import (
    Array,
    Call,
    DeviceEngine,
    Execution,
    LeafPath,
    NotJudged,
    NumpyArgument,
    Unsupported,
    dtype_names,
    leaves,
    map_leaves,
    output_label,
)
from pytest_msprobe.numerics.dtypes import float_format, in_spacings, kind_of, unit_roundoff
from pytest_msprobe.numerics.expected import Roundoffs
from pytest_msprobe.numerics.measurement import widened
from pytest_msprobe.suites.repeat import RepeatSettings
from pytest_msprobe.suites.repeat.results import Outcome, Runs, bytes_of, failure_text, judge_runs
from pytest_msprobe.verdicts import OutputRow, Verdict

_ARRAY = "__array_interface__"
#: Rows that run alone, at most: the first, the last and some between them.
_MOST_ALONE = 8
_SHOWN = 6
#: Kind of what changes with the batch by no more than another order of additions does.
DEPENDS_ON_BATCH = "depends on the batch"


class UnknownBatch(Exception):
    """Why a call has no rows that could be compared."""


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a call: places of the arguments that hold them along dimension 0, and how many there are."""

    places: frozenset[LeafPath]
    size: int


def find_batch(call: Call) -> BatchRows:
    """What `apis/facts/batch.txt` says of the batch of `call`: what a row is made of.

    Raises:
        UnknownBatch: they say nothing, or that this call has none.
    """
    term = _term(call.api, call.framework)
    tensors = {path: value for path, value in leaves(call) if hasattr(value, _ARRAY)}
    has_arrays = any(isinstance(value, NumpyArgument) for _, value in leaves(call))
    if has_arrays or any(len(path) > 2 for path in tensors):
        raise UnknownBatch("some of its tensors are in a list, or NumPy arrays")
    rows = _matching(tensors, term) if term.name in ("matching", "matmul") else _named(call, tensors, term)
    size = rows[0][1].shape[0] if rows and rows[0][1].ndim else 0
    if not size:
        raise UnknownBatch("its tensors have no rows")
    if any(not value.ndim or value.shape[0] != size for _, value in rows):
        raise UnknownBatch("its tensors do not have equally many rows")
    _check_form(call, rows[0][1], term)
    places = {path for path, _ in rows}
    for where in term.keywords.get("maybe", ()):
        path, value = _argument(call, where)
        if hasattr(value, _ARRAY) and value.ndim == rows[0][1].ndim and value.shape[0] == size:
            places.add(path)
        elif term.keywords.get("alone") and hasattr(value, _ARRAY) and value.ndim and value.shape[0] == size > 1:
            raise UnknownBatch(f"{_name(path)} may be part of the batch or not")
        elif hasattr(value, _ARRAY):
            tensors.pop(path)
    others = [path for path in tensors if path not in places]
    if term.keywords.get("alone") and others:
        raise UnknownBatch(f"it is not known whether {_name(others[0])} is part of the batch")
    return BatchRows(frozenset(places), size)


def _term(api: ApiName, framework: str) -> Term:
    fact = facts("batch").of(api, framework)
    if fact is None:
        sliced = facts("slices").of(api, framework)
        if sliced is not None and sliced.text == "elements":
            return Term("matching", (), {})
        raise UnknownBatch("it is not known which dimension is its batch")
    if fact.reason:
        raise UnknownBatch(fact.reason)
    return read_terms(fact.text)[0]


_Tensors = Mapping[LeafPath, Any]


def _matching(tensors: _Tensors, term: Term) -> list[tuple[LeafPath, Any]]:
    """Tensors of the most dimensions and rows; of a product with a matrix the first one alone."""
    if term.name == "matmul" and len(tensors) == 2:
        (path, first), (_, second) = tensors.items()
        if min(first.ndim, second.ndim) < 3:
            if first.ndim < 2 or second.ndim > 2:
                raise UnknownBatch("its first argument has no rows")
            return [(path, first)]
    most = max((value.ndim for value in tensors.values()), default=0)
    full = [(path, value) for path, value in tensors.items() if value.ndim == most > 0]
    longest = max((value.shape[0] for _, value in full), default=0)
    return [(path, value) for path, value in full if value.shape[0] == longest]


def _named(call: Call, tensors: _Tensors, term: Term) -> list[tuple[LeafPath, Any]]:
    rows = []
    for item in term.arguments:
        path, value = _argument(call, ast.literal_eval(item))
        if path not in tensors:
            raise UnknownBatch(f"{_name(path)} is no tensor")
        rows.append((path, value))
    return rows


def _argument(call: Call, where: Any) -> tuple[LeafPath, Any]:
    """Place and value of an argument: by position, or by one of its names; None where it is not given."""
    paths: list[LeafPath] = []
    for key in sorted(where if isinstance(where, tuple) else (where,), key=lambda key: isinstance(key, str)):
        if isinstance(key, int):
            paths.append(("input", key))
            if key < len(call.arguments):
                return paths[-1], call.arguments[key]
        else:
            paths.append(("kwargs", key))
            if key in call.named:
                return paths[-1], call.named[key]
    return paths[0], None


def _check_form(call: Call, first: Any, term: Term) -> None:
    """Raises UnknownBatch where dimension 0 is none, or values are joined along it."""
    options = term.keywords
    fewest = options.get("fewest", 1)
    if "dims_of" in options:
        other = _argument(call, options["dims_of"])[1]
        fewest = getattr(other, "ndim", 99)
    if "inner" in options:
        inner = _argument(call, options["inner"])[1]
        count = len(inner) if isinstance(inner, tuple) else getattr(inner, "ndim", 1)
        fewest = count + 1
    if first.ndim < fewest:
        raise UnknownBatch(f"a tensor of {first.ndim} dimensions is one without a batch here")
    if "axis" in options:
        axis = _argument(call, options["axis"])[1]
        axis = options.get("default") if axis is None else axis
        axes = axis if isinstance(axis, tuple) else (axis,)
        if not axes or any(type(dimension) is not int for dimension in axes):
            raise UnknownBatch("values are joined over all dimensions")
        if any(dimension % first.ndim == 0 for dimension in axes):
            raise UnknownBatch("values are joined along dimension 0")
    if "absent" in options and _argument(call, options["absent"])[1] is not None:
        raise UnknownBatch(f"{_name(_argument(call, options['absent'])[0])} is given")
    if "layout" in options:
        layout = _argument(call, options["layout"])[1]
        if not isinstance(layout, str) or not layout.startswith("B"):
            raise UnknownBatch(f"its layout is {layout}")


def _name(path: LeafPath) -> str:
    return f"{path[0]}[{path[1]!a}]"


@dataclass(slots=True)
class _OtherBatches:
    """What other batches gave of one output or gradient.

    Attributes:
        rows: changed rows, by the batch in which they changed.
        tried: how many rows were computed in each batch.
        ulp: largest change, in units in the last place of the changed value; None for what is no float.
        share: the largest change over the largest magnitude of its row.
        elements: largest number of elements of a row that changed.
    """

    rows: dict[str, set[int]] = field(default_factory=dict)
    tried: dict[str, set[int]] = field(default_factory=dict)
    ulp: float | None = None
    share: float = 0.0
    elements: int = 0

    def is_large(self, dtype: np.dtype[Any]) -> bool:
        """Whether the change is more than sums in another order make of values of `dtype`."""
        return self.ulp is not None and self.share > Roundoffs.OTHER_ORDER * unit_roundoff(dtype)


def variants(size: int) -> Iterator[tuple[str, list[Array]]]:
    """(what it is called, rows of each run) of the other batches of so many rows."""
    if size > 1:
        count = min(size, _MOST_ALONE)
        alone = sorted({round(index * (size - 1) / (count - 1)) for index in range(count)})
        yield "alone", [np.array([row]) for row in alone]
    if size > 3:
        yield "halved", [np.arange(size // 2), np.arange(size // 2, size)]
    yield "doubled", [np.tile(np.arange(size), 2)]
    if size > 1:
        yield "reversed", [np.arange(size)[::-1]]


def with_rows(call: Call, batch: BatchRows, rows: Array) -> Call:
    """`call` with other rows of its batch."""

    def taken(path: LeafPath, value: Any) -> Any:
        return np.ascontiguousarray(value[rows]) if path in batch.places else value

    arguments, keywords = map_leaves(call, taken)
    return replace(call, arguments=tuple(arguments), keywords=keywords)


class BatchCheck:
    """The check of one call: each other batch runs its forward once, and its gradients from that forward."""

    def __init__(
        self, engine: DeviceEngine, call: Call, wanted: tuple[LeafPath, ...], labels: Sequence[str], memory: int
    ) -> None:
        """A check on `engine`.

        Args:
            engine: the device.
            call: with its own batch.
            wanted: arguments whose gradients are computed.
            labels: of these gradients.
            memory: bytes that the tensors of a batch may have.
        """
        self._engine, self._call, self._wanted, self._labels, self._memory = engine, call, wanted, labels, memory

    def run(self, incoming: Incoming | None) -> Verdict:
        """The verdict on the forward, or on the backward with these gradients; a skip says why there is none.

        The results of the whole batch are computed here once more, so that all runs are made alike.
        """
        try:
            batch = find_batch(self._call)
            whole = self._rows_of(self._call, batch, incoming)
            outputs = {label: (array, _OtherBatches()) for label, array in whole.items()}
            for name, runs in variants(batch.size):
                for rows in runs:
                    self._compare_run(batch, incoming, name, rows, outputs)
        except UnknownBatch as stop:
            return Verdict("skip", f"its rows were not compared: {stop}")
        return _verdict(outputs, batch.size, self._engine.label)

    def _compare_run(
        self,
        batch: BatchRows,
        incoming: Incoming | None,
        name: str,
        rows: Array,
        outputs: dict[str, tuple[Array, _OtherBatches]],
    ) -> None:
        call = with_rows(self._call, batch, rows)
        held = sum(value.nbytes for _, value in leaves(call) if hasattr(value, _ARRAY))
        # How often the tensors of a doubled batch are in memory, results included.
        if len(rows) > batch.size and 4 * held > self._memory:
            return
        of_rows = incoming and tuple(_taken(array, batch.size, rows) for array in incoming)
        arrays = self._rows_of(call, replace(batch, size=len(rows)), of_rows)
        for label, (whole, result) in outputs.items():
            array = arrays.get(label)
            if array is None or array.shape[1:] != whole.shape[1:] or array.dtype != whole.dtype:
                raise UnknownBatch(f"{label} has another form with the batch {name}")
            _note(result, name, whole[rows], array, rows)

    def _rows_of(self, call: Call, batch: BatchRows, incoming: Incoming | None) -> dict[str, Array]:
        """Outputs, or gradients of the arguments with rows: those of other arguments are sums over the batch."""
        is_forward = incoming is None
        start = self._engine.repeated(call, differentiate=() if is_forward else self._wanted)
        execution = attempt(start)
        if isinstance(execution, (CapturedError, Unsupported)):
            raise UnknownBatch(f"the device does not run it with another batch: {execution}")
        if incoming is None:
            results: dict[str, Any] = {output_label(output.path): output.value for output in execution.outputs}
        else:
            gradients = attempt(partial(execution.gradients, incoming))
            if isinstance(gradients, (CapturedError, Unsupported)):
                raise UnknownBatch(f"the device does not run its gradient with another batch: {gradients}")
            pairs = zip(self._wanted, self._labels, gradients)
            results = {label: value for path, label, value in pairs if path in batch.places and value is not None}
        for label, value in results.items():
            if not hasattr(value, _ARRAY) or not value.ndim or value.shape[0] != batch.size:
                raise UnknownBatch(f"{label} does not have a row for each of the batch")
        if not results:
            raise UnknownBatch("it has no output" if is_forward else "its gradients are sums over the batch")
        return results


def _taken(array: Array | None, size: int, rows: Array) -> Array | None:
    if array is None:
        return None
    if not array.ndim or array.shape[0] != size:
        raise UnknownBatch("an incoming gradient does not have a row for each of the batch")
    taken: Array = np.ascontiguousarray(array[rows])
    return taken


def _note(result: _OtherBatches, name: str, whole: Array, array: Array, rows: Array) -> None:
    """Add the rows that are other bytes."""
    result.tried.setdefault(name, set()).update(map(int, rows))
    actual, expected = bytes_of(array).reshape(len(rows), -1), bytes_of(whole).reshape(len(rows), -1)
    for place in np.flatnonzero((actual != expected).any(axis=1)):
        result.rows.setdefault(name, set()).add(int(rows[place]))
        _measure(result, np.atleast_1d(array[place]), np.atleast_1d(whole[place]))


def _measure(result: _OtherBatches, row: Array, expected: Array) -> None:
    """How many elements of a row changed, and by how much."""
    is_changed = (bytes_of(row) != bytes_of(expected)).reshape(row.size, -1).any(axis=1)
    result.elements = max(result.elements, int(is_changed.sum()))
    if kind_of(expected.dtype) != "float":
        return
    a, b = widened(row).reshape(-1), widened(expected).reshape(-1)
    finite = np.isfinite(a) & np.isfinite(b)
    off, magnitude = np.abs(a[finite] - b[finite]), np.abs(b[finite])
    ulp = share = float("inf")
    if (np.isfinite(a) == np.isfinite(b)).all():
        ulp = float(in_spacings(off, magnitude, float_format(expected.dtype)).max(initial=0.0))
        share = float(off.max(initial=0.0)) / (float(magnitude.max(initial=0.0)) or 1.0)
    result.ulp, result.share = max(ulp, result.ulp or 0.0), max(share, result.share)


def _verdict(outputs: Mapping[str, tuple[Array, _OtherBatches]], size: int, device: str) -> Verdict:
    rows = tuple(_row(label, array, result, size) for label, (array, result) in outputs.items())
    wrong = [row for row in rows if row.status == "error"]
    if not wrong:
        return Verdict("pass", outputs=rows, device=device)
    lines = [f"{row.label} {row.tested_dtype} {row.shape}: {row.message}" for row in wrong]
    is_rounding = not any(result.is_large(array.dtype) for array, result in outputs.values())
    return Verdict(
        "error",
        "rows change with the batch",
        rows,
        explanation="\n".join(lines),
        device=device,
        properties=(("kind", DEPENDS_ON_BATCH),) if is_rounding else (),
    )


def _row(label: str, array: Array, changes: _OtherBatches, size: int) -> OutputRow:
    (dtype,) = dtype_names(array)
    if not changes.rows:
        figures: dict[str, float | None] = {"rows": 0.0}
        return OutputRow(label, "", dtype, array.shape, "pass", figures=figures)
    changed = set().union(*changes.rows.values())
    figures = {"rows": float(len(changed)), "elements": float(changes.elements), "ulp": changes.ulp}
    batches = "; ".join(_batch_words(name, changes, size) for name in changes.rows)
    by = ""
    if changes.ulp is not None:
        by = f" by up to {changes.ulp:.3g} ulp, {changes.share:.1g} of the largest value of the row"
        by += ", more than rounding" if changes.is_large(array.dtype) else ""
    message = f"rows change{by}: {batches}"
    return OutputRow(label, "", dtype, array.shape, "error", message, figures=figures, pattern="rows change")


def _batch_words(name: str, changes: _OtherBatches, size: int) -> str:
    """`alone (batch of 1) 2 of 8 rows: 0, 3`."""
    half = f"{size // 2}" if size % 2 == 0 else f"{size // 2} and {size - size // 2}"
    sizes = {"alone": "1", "halved": half, "doubled": f"{2 * size}", "reversed": f"{size}"}
    rows, tried = sorted(changes.rows[name]), len(changes.tried[name])
    shown = ", ".join(map(str, rows[:_SHOWN])) + (f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else "")
    return f"{name} (batch of {sizes[name]}) {len(rows)} of {tried} rows: {shown}"


#: What is left in memory before a run: NaN, and a number whose bytes are large in every dtype.
_FILLINGS = (math.nan, float.fromhex("0x1.fefefep+127"))
#: Runs that find filled memory, and every so many behind them: filling costs as much as several runs of a small call.
_FILLED = (2, 3)
_FILLED_EVERY = 64


class RepeatCheck:
    """The check of one API call: each run computes its forward once, and its gradients from that forward."""

    def __init__(
        self,
        dump: Dump,
        name: str,
        engine: DeviceEngine,
        target: str,
        settings: RepeatSettings,
        *,
        directions: Sequence[Direction],
    ) -> None:
        """A check of the call `name` of `dump` on `engine`, whose device is a `target`: `cpu`, `cuda`, `ascend`."""
        self._dump = dump
        self._name = name
        self._engine = engine
        self._target = target
        self._settings = settings
        self._directions = directions
        self._verdicts: dict[Direction, Verdict] = {}
        self._unfilled = ""  # why memory could not be filled

    def run(self, direction: Direction) -> Verdict:
        """The verdict on one direction; the first that is asked for runs all of them."""
        if not self._verdicts:
            try:
                self._verdicts = self._judge()
            except NotJudged as stop:
                self._verdicts = dict.fromkeys(
                    self._directions, Verdict(stop.status, stop.message, properties=stop.properties)
                )
        return self._verdicts[direction]

    def _judge(self) -> dict[Direction, Verdict]:
        with_backward = "backward" in self._directions
        settings = self._settings
        call_run = CallRun(
            self._dump,
            self._name,
            with_backward=with_backward,
            max_memory_bytes=settings.max_memory_bytes,
            seed=settings.seed,
        )
        case = call_run.case
        if case.random is not None:
            raise NotJudged("skip", "random by nature: its results differ in every run")
        refusal = self._engine.refusal(case.api, case.call.framework)
        if refusal is not None:
            raise NotJudged("skip", f"device: {refusal}")
        verdicts: dict[Direction, Verdict] = {}
        incoming: Incoming | None = None
        if with_backward:
            try:
                incoming = call_run.incoming("backward")
            except NotJudged as stop:
                verdicts["backward"] = Verdict(stop.status, stop.message, properties=stop.properties)
        runs = self._repeat(case, case.wanted if incoming is not None else (), incoming)
        drawn = drawn_arguments(case.forward)
        for direction in self._directions:
            if direction not in verdicts:
                kind = documented_difference(case.api, case.call.framework, self._target, direction)
                verdict = judge_runs(runs[direction], settings.runs, self._engine.label, documented=kind, drawn=drawn)
                if self._unfilled and verdict.status == "pass":
                    verdict = replace(verdict, message=f"memory was not filled between runs: {self._unfilled}")
                if settings.batch and verdict.status == "pass":
                    verdict = self._in_other_batches(case, incoming if direction == "backward" else None, verdict)
                verdicts[direction] = verdict
        return verdicts

    def _in_other_batches(self, case: Case, incoming: Incoming | None, verdict: Verdict) -> Verdict:
        """The `verdict` on runs that agree, or what other batches than the recorded one change of it."""
        labels = [case.gradient_label(path) for path in case.wanted]
        check = BatchCheck(self._engine, case.call, case.wanted, labels, self._settings.max_memory_bytes)
        by_batch = check.run(incoming)
        if by_batch.status != "pass":
            return replace(by_batch, device=verdict.device, attachment=verdict.attachment)
        figures = {row.label: row.figures for row in by_batch.outputs}
        rows = (replace(row, figures={**row.figures, **figures.get(row.label, {})}) for row in verdict.outputs)
        return replace(verdict, outputs=tuple(rows))

    def _repeat(self, case: Case, wanted: tuple[LeafPath, ...], incoming: Incoming | None) -> dict[Direction, Runs]:
        forwards, backwards = Runs(), Runs()
        sizes = [value.nbytes for _, value in leaves(case.call) if hasattr(value, "nbytes")]
        start = self._engine.repeated(case.call, differentiate=wanted)
        for run in range(1, self._settings.runs + 1):
            is_intact = self._fill(run, sizes) if run in _FILLED or run % _FILLED_EVERY == 0 else _untouched
            execution = attempt(start)
            forward = backward = _outputs(execution)
            forwards.add(run, forward)
            if incoming is not None:
                if not isinstance(execution, (CapturedError, Unsupported)):
                    backward = attempt(partial(execution.gradients, incoming))
                backwards.add(run, backward)
            if not is_intact():
                forwards.overwritten.append(run)
                backwards.overwritten.append(run)
            if run == 1:
                if isinstance(execution, (CapturedError, Unsupported)):
                    break
                forwards.labels = [output_label(output.path) for output in execution.outputs]
                backwards.labels = [case.gradient_label(path) for path in case.wanted]
                sizes += [value.nbytes for value in _arrays(forward) + _arrays(backward)]
            del execution  # its memory goes to the next run
        return {"forward": forwards, "backward": backwards}

    def _fill(self, run: int, sizes: Sequence[int]) -> Callable[[], bool]:
        """Fill the memory that a run will get; whether its neighbours are untouched afterwards."""
        value = _FILLINGS[run % 2]
        filled = attempt(lambda: self._engine.fill_memory(sizes, value))
        if isinstance(filled, (CapturedError, Unsupported)):
            self._unfilled = failure_text(filled)
            return _untouched
        return filled


def _untouched() -> bool:
    return True


def _outputs(execution: Execution | CapturedError | Unsupported) -> Outcome:
    if isinstance(execution, (CapturedError, Unsupported)):
        return execution
    return tuple([output.value for output in execution.outputs])


def _arrays(outcome: Outcome) -> list[Array]:
    values = outcome if isinstance(outcome, tuple) else ()
    return [value for value in values if hasattr(value, "nbytes")]  # type: ignore[misc]  # arrays only
