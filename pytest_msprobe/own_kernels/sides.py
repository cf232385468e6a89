"""Both sides of a judgement: the user's reference as an engine, and the kernel under test on its own tensors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from pytest_msprobe.apis.fact_table import facts, plain_name
from pytest_msprobe.cases.call_run import CapturedError
from pytest_msprobe.engines import mindspore_engine
from pytest_msprobe.engines.protocol import (
    CHANGED,
    Array,
    Call,
    LeafPath,
    Output,
    Unsupported,
    copy_of,
    filled_memory,
    flatten_outputs,
    is_differentiable,
    leaves,
)
from pytest_msprobe.engines.reference import Reference, ReferenceEngine, ReferenceExecution
from pytest_msprobe.engines.torch_engine import TorchCall, TorchEngine, TorchExecution, to_tensor
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF, unit_roundoff
from pytest_msprobe.own_kernels.arguments import Arguments, array_of, clone_of, framework_of, is_same
from pytest_msprobe.support import place_of, text_of

Paths = list[tuple[int | str, ...]]
#: Dtypes of larger roundoffs (float8) are for storage: nothing is computed in them, so that they are exact.
NARROWEST_COMPUTED = unit_roundoff("bfloat16")
#: Kernels of ATen that are the sum of products of one element of each of their tensors.
_MULTILINEAR = frozenset({"mm", "bmm", "mv", "dot", "convolution", "sum"})
#: Kernels of ATen that return indices.
_SELECTING = frozenset({"topk", "sort", "max", "min", "argmax", "argmin"})
_MOVING = frozenset({"detach", "alias", "_unsafe_view", "lift_fresh", "empty", "empty_like", "zeros", "ones"})


@dataclass
class Trace:
    """What was seen of the first run of a reference on tensors of PyTorch.

    Attributes:
        names: kernels of ATen that it called.
        arithmetic: those that compute, as often as they did.
        narrow: what was rounded to a dtype narrower than float64, and where: "float32 at kernels.py:12"; "" if nothing.
        indices: (tensor of indices, what they select from, axis) of kernels that select.
    """

    names: set[str] = field(default_factory=set)
    arithmetic: list[str] = field(default_factory=list)
    narrow: str = ""
    indices: list[tuple[Any, Any, int | None]] = field(default_factory=list)

    def is_known_as(self, topic: str) -> bool:
        """Whether the reference is elementary, elementwise or multilinear as facts say of APIs."""
        if topic == "multilinear":
            return len(self.arithmetic) == 1 and self.arithmetic[0] in _MULTILINEAR
        is_listed = [facts(topic).word(plain_name(name)) is not None for name in self.names]
        return any(is_listed) if topic == "elementary" else bool(is_listed) and all(is_listed)

    def add(self, torch: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], returned: Any) -> None:
        """Take one call of a kernel of ATen."""
        name = func._schema.name.partition("::")[2].rstrip("_")
        results = returned if isinstance(returned, (tuple, list)) else (returned,)
        if name in _MOVING or not (results and isinstance(results[0], torch.Tensor)):
            return
        is_product = name == "pow" and isinstance(args[1], (int, float)) and float(args[1]).is_integer()
        self.names.add("mul" if is_product else name)
        if any(f"Aten.{name}" in facts(table).typed("pytorch") for table in ("torch_kernels", "torch_sums")):
            self.arithmetic.append(name)
        dtype = results[0].dtype
        is_narrow = dtype.is_floating_point and dtype != torch.float64
        if is_narrow and not self.narrow and _is_lossy(torch, func, args, kwargs, results[0]):
            self.narrow = f"{str(dtype).rpartition('.')[2]} at {_user_line()}"
        if name in _SELECTING:
            at = 2 if name == "topk" else 1
            default = -1 if name in ("topk", "sort") else None
            axis = args[at] if len(args) > at else kwargs.get("dim", default)
            self.indices.append((results[-1], args[0].detach(), axis))


def _is_lossy(torch: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> bool:
    """Whether a result in a narrow dtype is another one than float64 gives; False where nothing is computed."""
    floats = [value for value in args if _is_float(torch, value)]
    if not floats:
        return False
    exact = floats[0]
    if not any(isinstance(value, torch.dtype) for value in kwargs.values()):
        exact = func(*(_raised(torch, value) for value in args), **kwargs)
        exact = exact[0] if isinstance(exact, (tuple, list)) else exact
    is_alike = exact.shape == result.shape
    return bool(is_alike and not torch.equal(exact.double().nan_to_num(), result.double().nan_to_num()))


def _is_float(torch: Any, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _raised(torch: Any, value: Any) -> Any:
    return value.double() if _is_float(torch, value) else value


def _user_line() -> str:
    """`kernels.py:12`, the line of the user that calls."""
    folders = str(Path(__file__).parent.parent), str(Path(sys.modules["torch"].__file__ or "").parent), "<"
    frames = reversed(traceback.extract_stack())
    frame = next(frame for frame in frames if not frame.filename.startswith(folders))
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _watch(torch: Any, trace: Trace) -> AbstractContextManager[Any]:
    """Context that fills `trace`."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class CallWatcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            returned = func(*args, **(kwargs or {}))
            trace.add(torch, func, args, kwargs or {}, returned)
            return returned

    return CallWatcher()  # type: ignore[no-untyped-call]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Context in which the generators of NumPy and of PyTorch begin with `seed`; put back behind it."""
    state, torch = np.random.get_state(), sys.modules.get("torch")
    devices = range(torch.cuda.device_count()) if torch is not None and torch.cuda.is_initialized() else ()
    np.random.seed(seed % 2**32)
    try:
        with nullcontext() if torch is None else torch.random.fork_rng(list(devices)):
            if torch is not None:
                torch.manual_seed(seed)
            yield
    finally:
        np.random.set_state(state)


def _flat(function: Callable[..., Any], paths: Paths, seed: int) -> Callable[..., tuple[Any, ...]]:
    """`function` with all leaves of its result in one tuple, whose places in the result go into `paths`."""

    def run(*arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        with _seeded(seed):
            results = list(flatten_outputs(function(*arguments, **keywords)))
        results.sort(key=lambda leaf: [(isinstance(part, str), part) for part in leaf[0]])  # dicts by their keys
        paths[:] = map(itemgetter(0), results)
        return tuple(map(itemgetter(1), results))

    return run


def _with_paths(execution: Any, paths: Paths, changed: Sequence[LeafPath]) -> Any:
    """`execution`, whose outputs have the places of the user's result, and of arguments that were changed."""
    places = [*paths, *((CHANGED, *path[1:]) for path in changed)]
    execution.outputs = tuple(replace(output, path=path) for output, path in zip(execution.outputs, places))
    return execution


class TorchReference(TorchEngine):
    """A callable that computes on float64 tensors of PyTorch; its arithmetic can be moved.

    Attributes:
        trace: what the first run was seen to do.
        failure: what the callable raised last; None where it never did.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Arguments, device: str, seed: int, roundoff: float | None
    ) -> None:
        """A benchmark on `device`. Results inside are moved by `roundoff`, or where that is None by that of float32."""
        super().__init__(device, is_raised=True)
        self._function, self._arguments, self._seed, self._roundoff = function, arguments, seed, roundoff
        self.trace: Trace | None = None
        self.failure: CapturedError | None = None
        arrays = map(array_of, arguments.tensors.values())
        self._given = [unit_roundoff(array.dtype) for array in arrays if is_differentiable(array)]

    def refusal(self, api: Any, framework: str) -> str | None:
        """None: it was written for this call."""
        return None

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> TorchExecution:
        """See `Engine.forward`."""
        torch, paths = self._torch, Paths()
        places: dict[int, LeafPath] = {}
        tensors: list[Any] = []
        wanted: dict[LeafPath, Any] = {}

        def convert(path: LeafPath, value: Any) -> Any:
            if isinstance(value, torch.dtype) and value.is_floating_point:
                return torch.float64
            if not isinstance(value, np.ndarray):
                return torch.device(self._device) if isinstance(value, torch.device) else value
            with np.errstate(all="ignore"):  # memory that is to be written may hold anything
                tensor = to_tensor(torch, copy_of(value, is_raised=True)).to(self._device)
            if path in differentiate:
                wanted[path] = tensor.requires_grad_()
                with torch.enable_grad():
                    tensor = tensor.clone()  # which a kernel may write into
            tensors.append(tensor)
            places[id(tensor)] = path
            return tensor

        positional, keywords = self._arguments.with_arrays(call, convert)
        function = partial(self._watched, _flat(self._function, paths, self._seed), positional, keywords)
        ready = TorchCall(torch, function, "", tensors, [wanted[path] for path in differentiate], may_write=True)
        execution = self._run(self._with_own_roundoffs(call), ready)
        changed = [places[id(tensor)] for tensor in execution._changed]
        return _with_paths(execution, paths, changed)  # type: ignore[no-any-return]

    def _with_own_roundoffs(self, call: Call) -> Call:
        """`call` with what is moved inside moved by what the kernel may add in; storage formats say nothing of that."""
        computing = [roundoff for roundoff in self._given if roundoff <= NARROWEST_COMPUTED]
        computed = max(computing, default=FLOAT32_ROUNDOFF)
        largest = max(self._given, default=computed)
        inside, saved, total = call.arithmetic_roundoff, call.saved_roundoff, call.total_roundoff
        if self._roundoff is not None:
            inside *= self._roundoff / min(FLOAT32_ROUNDOFF, largest)
        share = computed / largest
        total = max(inside, total * share) if total else 0.0
        return replace(call, arithmetic_roundoff=inside, saved_roundoff=saved * share, total_roundoff=total)

    def _watched(self, function: Callable[..., Any], positional: Any, keywords: Any) -> Any:
        torch, default = self._torch, self._torch.get_default_dtype()
        is_first = self.trace is None
        self.trace = self.trace or Trace()
        torch.set_default_dtype(torch.float64)
        try:
            with _watch(torch, self.trace) if is_first else nullcontext():
                return function(*positional, **keywords)
        except Exception as error:
            self.failure = CapturedError(text_of(error), place_of(error))
            raise RuntimeError from error  # a TypeError would be taken for a refusal
        finally:
            torch.set_default_dtype(default)


class NumpyReference(ReferenceEngine):
    """A callable that computes on float64 arrays of NumPy."""

    def __init__(self, function: Callable[..., Any], seed: int) -> None:
        """A benchmark without gradients."""
        super().__init__(Reference(function))
        self.label, self._function, self._seed = "numpy float64", function, seed

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> ReferenceExecution:
        """See `Engine.forward`."""
        paths, changed = Paths(), list[LeafPath]()

        def run(*positional: Any, **keywords: Any) -> tuple[Any, ...]:
            arguments = leaves(replace(call, arguments=positional, keywords=keywords))
            arrays = [(path, value, value.copy()) for path, value in arguments if isinstance(value, np.ndarray)]
            returned = _flat(self._function, paths, self._seed)(*positional, **keywords)
            back = set(map(id, returned))
            written = {p: value for p, value, old in arrays if id(value) not in back and not is_same(value, old)}
            changed[:] = written
            return (*returned, *written.values())

        return _with_paths(ReferenceExecution(Reference(run), call, ()), paths, changed)  # type: ignore[no-any-return]


class MindSporeSide(mindspore_engine.MindSporeEngine):
    """A callable that computes on tensors of MindSpore, in float64 on the CPU or in the dtypes of its arguments."""

    def __init__(
        self, function: Callable[..., Any], arguments: Arguments, seed: int, *, is_raised: bool, target: str = "CPU"
    ) -> None:
        """The benchmark where `is_raised`, else the kernel under test."""
        super().__init__(target, is_raised=is_raised)
        self._function, self._arguments, self._seed = function, arguments, seed

    def refusal(self, api: Any, framework: str) -> str | None:
        """None: it was written for this call."""
        return None

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Any:
        """See `Engine.forward`."""
        mindspore, paths = self._mindspore, Paths()
        tensors: dict[LeafPath, Any] = {}

        def convert(path: LeafPath, value: Any) -> Any:
            if isinstance(value, np.ndarray):
                tensors[path] = mindspore_engine.to_tensor(mindspore, value, is_raised=self._is_raised)
            return tensors.get(path, value)

        converted = Arguments(*self._arguments.with_arrays(call, convert))

        def run(*inputs: Any) -> Any:
            mindspore.set_seed(self._seed)
            positional, keywords = converted.mapped(dict(zip(differentiate, inputs)).get)
            return _flat(self._function, paths, self._seed)(*positional, **keywords)

        wanted = tuple(map(tensors.get, differentiate))
        ready = mindspore_engine.MindSporeCall(mindspore, self.target, run, [*tensors.values()], wanted)
        return _with_paths(self._run(call, ready), paths, ())


@dataclass
class _ArrayExecution:
    """Results of a kernel without gradients."""

    outputs: tuple[Output, ...]

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """Refuse.

        Raises:
            Unsupported: always.
        """
        raise Unsupported("there are no gradients of arrays")


@dataclass(frozen=True)
class Kernel:
    """The kernel under test, or another one like it, which runs on copies of the user's own tensors.

    Attributes:
        function: the kernel, or a result that is there already.
        arguments, call: what it is called with.
        wanted: places of the tensors that are differentiated.
        seed: of generators.
    """

    function: Any
    arguments: Arguments
    call: Call
    wanted: tuple[LeafPath, ...]
    seed: int

    @property
    def name(self) -> str:
        """The name of the function."""
        inner = getattr(self.function, "func", self.function)
        return str(getattr(inner, "__name__", type(inner).__name__)) if callable(inner) else "the result"

    def run(self, filled: Sequence[int] = ()) -> Any:
        """An execution with what the kernel returns, and the arguments that it has changed.

        Memory that its tensors of so many bytes will most likely get is `filled` before, with a pattern; and incoming
        gradients of a backward that is written in Python will then not be contiguous.
        """
        copies, versions = dict[LeafPath, Any](), dict[LeafPath, int]()
        paths, tensors = Paths(), self.arguments.tensors
        if not callable(self.function):
            returned = _flat(lambda: self.function, paths, self.seed)()
        elif self.arguments.framework == "mindspore":
            target = str(sys.modules["mindspore"].get_context("device_target"))
            side = MindSporeSide(self.function, self.arguments, self.seed, is_raised=False, target=target)
            side.fill_memory(filled, _FILLING)
            return side.forward(self.call, differentiate=self.wanted)
        else:

            def convert(path: LeafPath, value: Any) -> Any:
                if path in tensors:
                    copies[path] = clone_of(value)
                return copies[path].requires_grad_() if path in self.wanted else copies.get(path, value)

            def call(*positional: Any, **keywords: Any) -> Any:
                self._fill_memory(filled)
                return self.function(*positional, **keywords)

            positional, keywords = self.arguments.mapped(convert)
            versions |= {path: getattr(copy, "_version", 0) for path, copy in copies.items()}
            returned = _flat(call, paths, self.seed)(*positional, **keywords)
        back = set(map(id, returned))
        unseen = {p: x for p, x in copies.items() if id(x) not in back}
        written = {p: x for p, x in unseen.items() if not is_same(x, tensors[p])}
        # What was there before may be what it wrote, as in memory of an earlier call.
        if not written and all(value is None for value in returned):
            written = {p: x for p, x in unseen.items() if getattr(x, "_version", 0) != versions[p]}
        if self.arguments.framework == "torch" and {framework_of(value) for value in returned} <= {"torch", ""}:
            wanted = [copies.get(path, tensors[path]) for path in self.wanted]
            torch, keeps = sys.modules["torch"], not callable(self.function)
            turned = [value for value in returned if filled and _is_own_gradient(torch, value)]
            for value in turned:  # as the operation behind it may give it in training
                value.register_hook(lambda incoming: incoming.mT.contiguous().mT)
            ready = TorchCall(torch, tuple, "", [], wanted, may_write=False, keeps_graph=keeps)
            execution: Any = TorchExecution(ready, returned, nullcontext(), [*written.values()])
            execution.is_turned = bool(turned)
        else:
            outputs = []
            for place, value in enumerate((*returned, *written.values())):
                outputs.append(Output((place,), array_of(value) if framework_of(value) else value))
            execution = _ArrayExecution(tuple(outputs))
        return _with_paths(execution, paths, [*written])

    def _fill_memory(self, sizes: Sequence[int]) -> None:
        # Free blocks of small tensors are many, and any of them may be taken.
        filled: list[int] = []
        for size in sizes:
            filled += [size] * (_BLOCKS if size < _LARGE else 1)
        first: Any = next(iter(self.arguments.tensors.values()), None)
        if filled and framework_of(first) == "torch":
            TorchEngine(str(first.device), is_raised=False).fill_memory(filled, _FILLING)
        elif filled and framework_of(first) in ("numpy", ""):
            filled_memory(filled, lambda count: np.full(count, _FILLING, np.float32), lambda array: array)


def _is_own_gradient(torch: Any, value: Any) -> bool:
    """Whether the gradient of a matrix, or of more axes, begins in a backward that is written in Python."""
    node, kind = getattr(value, "grad_fn", None), torch.autograd.function.BackwardCFunction
    while node is not None and not isinstance(node, kind) and len(node.next_functions) == 1:
        node = node.next_functions[0][0]  # such as a cast
    return isinstance(node, kind) and value.dim() > 1


_FILLING_BYTE = 0x7E
_BLOCKS, _LARGE = 8, 1 << 20
#: Whose bytes are all the same, so that elements of every dtype show that they were not written.
_FILLING = float(np.full(4, _FILLING_BYTE, np.uint8).view(np.float32)[0])


def is_filling(array: Array) -> Array:
    """Which elements hold nothing but what memory was filled with."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.dtype.itemsize)
    is_filled: Array = (data == _FILLING_BYTE).all(axis=1).reshape(array.shape)
    return is_filled
