"""The bare frameworks: the API calls of a dump without pytest, comparison or reports. What the loop is held against.

All other work happens before timing: reading the dump, making the inputs, resolving callables.
A timed step turns NumPy arrays into tensors, runs forward and backward once, and hands the results back as arrays.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from msprobe_collector.dump_format import ApiName, Dtype, Dump, TensorValue, Value, dtype_of_array, tensors_in
from pytest_msprobe.apis.fact_table import writes_in_place
from pytest_msprobe.cases.case import Case, read_case, read_incoming
from pytest_msprobe.cases.inputs import InputSource
from pytest_msprobe.engines.protocol import NotJudged, NumpyArgument, argument_dtype, map_leaves
from pytest_msprobe.engines.selection import Engines
from pytest_msprobe.engines.torch_bindings import Binding, CallMapping, NoCounterpart, lookup

Array = np.ndarray
Step = Callable[[], object]
_NO_LIMIT = 1 << 62
_MINDSPORE_MODULES = {"Mint": "mint", "MintFunctional": "mint.nn.functional", "Functional": "ops"}


class CannotRunError(Exception):
    """This side has no such call; the text says why."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for the i-th tensor in prepared arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """An API call with its values, ready for one framework.

    Attributes:
        arguments, keywords: what the callable takes, with slots in place of tensors.
        arrays: values of the slots; the first `wanted` of them are differentiated.
        incoming: gradient per top-level output tensor; empty when only the forward runs.
    """

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    arrays: list[Array]
    wanted: int
    incoming: tuple[Array | None, ...]

    def run(self, function: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        """What `function` returns for the arguments with `tensors` in their slots."""
        return function(*place(self.arguments, tensors), **place(self.keywords, tensors))


class Side(Protocol):
    """A framework in one precision."""

    def step(self, case: Case, incoming: tuple[Array | None, ...]) -> Step:
        """The API call as a step to time. Raises CannotRunError."""


class TorchSide:
    """PyTorch on the CPU, in float64 or in the dump's dtypes."""

    def __init__(self, *, is_raised: bool) -> None:
        import torch

        from pytest_msprobe.engines import adapters

        self._torch = torch
        self._roots = {"torch": torch, "adapters": adapters}
        self._is_raised = is_raised

    def step(self, case: Case, incoming: tuple[Array | None, ...]) -> Step:
        """See `Side`."""
        name = case.api.table_name
        binding = lookup(case.api.type, name, case.call.framework)
        if isinstance(binding, NoCounterpart):
            raise CannotRunError(binding.reason)
        prepared = prepare(case, incoming, self._torch, is_raised=self._is_raised)
        function = self._function(binding, prepared)
        return lambda: self._execute(prepared, function)

    def _function(self, binding: Binding, prepared: Prepared) -> Callable[..., Any]:
        if not binding.forms:
            return binding.resolve(self._roots)
        arguments, keywords = place(prepared.arguments, prepared.arrays), place(prepared.keywords, prepared.arrays)
        for form in binding.forms:
            try:
                form.bind(arguments, keywords, self._roots)
            except TypeError:
                continue
            return compile_form(form, self._roots)
        raise CannotRunError(f"{binding.api}: the arguments fit no line of the table")

    def _execute(self, prepared: Prepared, function: Callable[..., Any]) -> object:
        torch = self._torch
        tensors = [self._tensor(array) for array in prepared.arrays]
        leaves = tensors[: prepared.wanted]
        for leaf in leaves:
            leaf.requires_grad_()
        returned = prepared.run(function, tensors)
        outputs = list(top_level(returned, torch.Tensor))
        found = [output.detach().numpy() for output in outputs]
        pairs = [(out, gradient) for out, gradient in zip(outputs, prepared.incoming) if out.requires_grad]
        if pairs:
            sens = [torch.zeros_like(out) if g is None else self._tensor(g).to(out.dtype) for out, g in pairs]
            gradients = torch.autograd.grad([out for out, _ in pairs], leaves, sens, allow_unused=True)
            found += [gradient.numpy() for gradient in gradients if gradient is not None]
        return found

    def _tensor(self, array: Array) -> Any:
        return self._torch.from_numpy(raised(array) if self._is_raised else array)


class MindSporeSide:
    """MindSpore on the CPU, synchronous, in float64 or in the dump's dtypes."""

    def __init__(self, *, is_raised: bool) -> None:
        import mindspore

        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        mindspore.set_device("CPU")
        mindspore.runtime.launch_blocking()
        self._mindspore = mindspore
        self._differentiate = mindspore.ops.GradOperation(get_all=True, sens_param=True)
        self._is_raised = is_raised

    def step(self, case: Case, incoming: tuple[Array | None, ...]) -> Step:
        """See `Side`."""
        function = mindspore_function(self._mindspore, case.api)
        prepared = prepare(case, incoming, self._mindspore, is_raised=self._is_raised)
        return lambda: self._execute(prepared, function)

    def _execute(self, prepared: Prepared, function: Callable[..., Any]) -> object:
        tensors = [self._tensor(array) for array in prepared.arrays]
        if not prepared.incoming:
            returned = prepared.run(function, tensors)
            return [output.asnumpy() for output in top_level(returned, self._mindspore.Tensor)]
        leaves, others = tensors[: prepared.wanted], tensors[prepared.wanted :]
        outputs: list[Any] = []

        def forward(*given: Any) -> Any:
            outputs.extend(top_level(prepared.run(function, [*given, *others]), self._mindspore.Tensor))
            carrying = tuple(output for output in outputs if output.is_floating_point())
            return carrying[0] if len(carrying) == 1 else carrying

        sens = tuple(self._tensor(gradient) for gradient in prepared.incoming if gradient is not None)
        gradients = self._differentiate(forward)(*leaves, sens[0] if len(sens) == 1 else sens)
        return [value.asnumpy() for value in (*outputs, *gradients)]

    def _tensor(self, array: Array) -> Any:
        return self._mindspore.Tensor(raised(array) if self._is_raised else array)


class RecordedSide:
    """The recorded outputs and gradients, read with NumPy."""

    def __init__(self, dump: Dump) -> None:
        self._folder = dump.tensors.folder

    def step(self, case: Case, incoming: tuple[Array | None, ...]) -> Step:
        """See `Side`."""
        values: list[Value] = [case.forward.outputs or ()]
        if incoming and case.backward is not None:
            values.append(case.backward.outgoing or ())
        paths = [self._folder / tensor.data_name for tensor in named_tensors(values)]
        return lambda: [np.load(path) for path in paths]


@dataclass(frozen=True, slots=True)
class BareCall:
    """One API call on both sides."""

    name: str
    tested: Step
    benchmark: Step


@dataclass(frozen=True, slots=True)
class BareTime:
    """Seconds that one pass over all calls took on each side."""

    tested: float
    benchmark: float

    @property
    def total(self) -> float:
        """Both sides."""
        return self.tested + self.benchmark


def prepare_calls(dump: Dump, engines: Engines) -> tuple[list[BareCall], Counter[str]]:
    """(every API call that both sides can run, reasons of the others). Each step has then run once, as a warm-up."""
    tested = [_tested_side(dump, engines)]
    benchmarks = [
        TorchSide(is_raised=True) if engine.name == "torch" else _LazyMindSpore(is_raised=True)
        for engine in engines.benchmarks
    ]
    calls: list[BareCall] = []
    left_out: Counter[str] = Counter()
    for name in call_names(dump):
        try:
            case, incoming = _read(dump, name)
            calls.append(BareCall(name, _first(tested, case, incoming), _first(benchmarks, case, incoming)))
        except (CannotRunError, NotJudged) as stop:
            left_out[str(stop)[:120]] += 1
    return calls, left_out


def time_calls(calls: Sequence[BareCall]) -> BareTime:
    """One pass over all calls."""
    tested = benchmark = 0.0
    for call in calls:
        started = perf_counter()
        call.tested()
        between = perf_counter()
        call.benchmark()
        benchmark += perf_counter() - between
        tested += between - started
    return BareTime(tested, benchmark)


def call_names(dump: Dump) -> list[str]:
    """Names of the API calls that have a forward record."""
    return [name.removesuffix(".forward") for name in dump.record_names if name.endswith(".forward")]


def prepare(case: Case, incoming: tuple[Array | None, ...], framework: Any, *, is_raised: bool) -> Prepared:
    """The call's arguments with slots for tensors, those to differentiate first."""
    arrays = dict.fromkeys(case.wanted)

    def note(path: Any, value: Any) -> Any:
        if hasattr(value, "__array_interface__"):
            arrays[path] = np.array(value)
        return value

    map_leaves(case.call, note)
    index = {path: i for i, path in enumerate(arrays)}

    def convert(path: Any, value: Any) -> Any:
        if isinstance(value, Dtype):
            dtype = argument_dtype(value, case.api.short, is_raised=is_raised)
            return getattr(framework, dtype.array_name or dtype.name)
        if isinstance(value, NumpyArgument):
            return value.array
        return Slot(index[path]) if path in index else value

    arguments, keywords = map_leaves(case.call, convert)
    return Prepared(tuple(arguments), keywords, list(arrays.values()), len(case.wanted), incoming)


def place(value: Any, tensors: Sequence[Any]) -> Any:
    """`value` with every slot filled."""
    if type(value) is Slot:
        return tensors[value.index]
    if type(value) is tuple:
        return tuple([place(item, tensors) for item in value])
    if type(value) is dict:
        return {key: place(item, tensors) for key, item in value.items()}
    return value


def compile_form(form: CallMapping, roots: dict[str, object]) -> Callable[..., Any]:
    """A table line as a plain Python function, so that no interpreter of ours is timed."""
    head = form.text.partition(" -> ")[0]
    definition = ast.parse(f"def form{head[head.index('(') :]}: ...")
    function = definition.body[0]
    assert isinstance(function, ast.FunctionDef)
    for argument in (*function.args.args, *function.args.kwonlyargs):
        argument.annotation = None
    function.body = [ast.fix_missing_locations(ast.Return(form.expression))]
    names = dict(roots)
    exec(compile(ast.fix_missing_locations(definition), "<table>", "exec"), names)
    return names["form"]


def mindspore_function(mindspore: Any, api: ApiName) -> Callable[..., Any]:
    """MindSpore's own callable for `api`."""
    try:
        if api.type == "Tensor":
            return getattr(mindspore.Tensor, api.api)
        if api.type == "Primitive":
            modules = (mindspore.ops, mindspore.ops.operations, mindspore.ops.auto_generate)
            return next(getattr(module, api.short) for module in modules if hasattr(module, api.short))()
        return operator.attrgetter(f"{_MINDSPORE_MODULES[api.type]}.{api.api}")(mindspore)
    except (AttributeError, KeyError, StopIteration, TypeError) as error:
        raise CannotRunError(f"mindspore has no {api.type}.{api.api} ({error})") from None


def raised(array: Array) -> Array:
    """Floats as float64, complex numbers as complex128, the rest as it is."""
    dtype = dtype_of_array(array.dtype)
    kind = "" if dtype is None else dtype.kind
    wider = {"float": np.float64, "complex": np.complex128}.get(kind)
    return array if wider is None else array.astype(wider)


def top_level(returned: Any, tensor_type: type) -> Iterator[Any]:
    """The tensors that an API returned: bare, or directly in a tuple or list."""
    for value in returned if isinstance(returned, (tuple, list)) else (returned,):
        if isinstance(value, tensor_type):
            yield value


def named_tensors(values: Sequence[Value]) -> list[TensorValue]:
    """The tensors in `values` that have a file."""
    return [tensor for value in values for tensor in tensors_in(value) if tensor.data_name is not None]


class _LazyMindSpore:
    """A MindSpore side that is imported only when a call needs it, as in the product."""

    def __init__(self, *, is_raised: bool) -> None:
        self._is_raised = is_raised
        self._side: MindSporeSide | None = None

    def step(self, case: Case, incoming: tuple[Array | None, ...]) -> Step:
        self._side = self._side or MindSporeSide(is_raised=self._is_raised)
        return self._side.step(case, incoming)


def _tested_side(dump: Dump, engines: Engines) -> Side:
    specification = engines.device_for(dump)
    if specification.engine == "recorded":
        return RecordedSide(dump)
    if specification.target not in (None, "cpu"):
        raise SystemExit(f"the bare side runs on the CPU only, not on {specification.target}")
    return TorchSide(is_raised=False) if specification.engine == "torch" else MindSporeSide(is_raised=False)


def _read(dump: Dump, name: str) -> tuple[Case, tuple[Array | None, ...]]:
    source = InputSource(str(dump.path), dump.tensors, 0)
    has_backward = f"{name}.backward" in dump
    case = read_case(dump, name, source, with_backward=has_backward, max_memory_bytes=_NO_LIMIT)
    if writes_in_place(case.api):
        raise CannotRunError("writes in place: a bare call would spoil its inputs")
    try:
        incoming = read_incoming(case, source) if has_backward else ()
    except NotJudged:
        incoming = ()
    return case, incoming


def _first(sides: Sequence[Side], case: Case, incoming: tuple[Array | None, ...]) -> Step:
    problems = []
    for side in sides:
        try:
            step = side.step(case, incoming)
            step()
        except CannotRunError as error:
            problems.append(str(error))
        except Exception as error:
            problems.append(f"{case.api}: {type(error).__name__}: {error}")
        else:
            return step
    raise CannotRunError("; ".join(problems))
