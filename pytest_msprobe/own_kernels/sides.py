"""Both sides of a judgement of a kernel: the user's callables as engines, and the kernel under test on its own tensors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_msprobe.apis.fact_table import facts, plain_name
from pytest_msprobe.cases.call_run import CapturedError
from pytest_msprobe.engines.protocol import (
    CHANGED,
    Array,
    Call,
    LeafPath,
    Output,
    Unsupported,
    filled_memory,
    flatten_outputs,
    is_differentiable,
    leaves,
)
from pytest_msprobe.engines.mindspore_engine import (
    MindSporeEngine,
    ReadyCall as MindSporeCall,
    to_tensor as to_mindspore,
)
from pytest_msprobe.engines.reference import Reference, ReferenceEngine, ReferenceExecution
from pytest_msprobe.engines.torch_engine import ReadyCall, TorchEngine, TorchExecution, to_tensor
from pytest_msprobe.numerics import unit_roundoff
from pytest_msprobe.own_kernels.arguments import Arguments, array_of, copy_of, framework_of, is_same
from pytest_msprobe.support import place_of, text_of

_FLOAT32 = 2.0**-24
#: Dtypes of larger roundoffs (float8) are for storage: nothing is computed in them, so that they are exact.
NARROWEST_COMPUTED = 2.0**-8
_HERE = str(Path(__file__).parent.parent)
#: Kernels of ATen that are the sum of products of one element of each of their tensors.
_MULTILINEAR = frozenset({"mm", "bmm", "mv", "dot", "convolution", "sum"})
#: Kernels of ATen that return indices: the position of these, of what they select from and of the axis.
_INDICES = {"topk": (1, 2), "sort": (1, 1), "max": (1, 1), "min": (1, 1), "argmax": (0, 1), "argmin": (0, 1)}
_DEFAULT_AXES = {"topk": -1, "sort": -1, "argmax": None, "argmin": None}


@dataclass
class Trace:
    """What was seen of the first run of a reference on tensors of PyTorch.

    Attributes:
        names: kernels of ATen that it called.
        arithmetic: those that compute, as often as they did.
        narrow: what was rounded to a dtype narrower than float64, and where: "float32 at kernels.py:12"; "" if nothing.
        indices: of outputs that are indices, by the identity of the tensor: what they select from, and the axis.
    """

    names: set[str] = field(default_factory=set)
    arithmetic: list[str] = field(default_factory=list)
    narrow: str = ""
    indices: dict[int, tuple[Any, Any, int | None]] = field(default_factory=dict)

    def is_known_as(self, topic: str) -> bool:
        """Whether the reference is elementary, elementwise or multilinear as facts say of APIs."""
        if topic == "multilinear":
            return len(self.arithmetic) == 1 and self.arithmetic[0] in _MULTILINEAR
        known = [facts(topic).word(plain_name(name)) is not None for name in self.names]
        return any(known) if topic == "elementary" else bool(known) and all(known)


def _watch(torch: Any, trace: Trace) -> AbstractContextManager[Any]:
    """Context that fills `trace`."""
    from torch.utils._python_dispatch import TorchDispatchMode

    kernels, sums = ({name.partition(".")[2] for name in facts(f"torch_{kind}").typed("pytorch")} for kind in _KINDS)

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            returned = func(*args, **(kwargs or {}))
            name = func._schema.name.partition("::")[2].rstrip("_")
            if name in _MOVING:
                return returned
            is_product = name == "pow" and isinstance(args[1], (int, float)) and float(args[1]).is_integer()
            trace.names.add("mul" if is_product else name)
            first = returned[0] if isinstance(returned, (tuple, list)) and returned else returned
            if not isinstance(first, torch.Tensor):
                return returned
            if name in kernels or name in sums:
                trace.arithmetic.append(name)
            is_narrow = first.is_floating_point() and first.dtype != torch.float64
            if is_narrow and not trace.narrow and _is_lossy(torch, func, args, kwargs or {}, first):
                trace.narrow = f"{str(first.dtype).rpartition('.')[2]} at {_user_line()}"
            if name in _INDICES:
                position, axis_at = _INDICES[name]
                indices = returned[position] if isinstance(returned, (tuple, list)) else returned
                axis = args[axis_at] if len(args) > axis_at else (kwargs or {}).get("dim", _DEFAULT_AXES.get(name))
                trace.indices[id(indices)] = indices, args[0].detach(), axis
            return returned

    return Watch()  # type: ignore[no-untyped-call]


def _is_lossy(torch: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> bool:
    """Whether a result in a narrow dtype is another one than float64 gives; False where nothing is computed."""
    floats = [value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point()]
    if not floats:
        return False
    if any(isinstance(value, torch.dtype) for value in kwargs.values()):
        exact = floats[0]
    else:
        wide = [value.double() if any(value is each for each in floats) else value for value in args]
        exact = func(*wide, **kwargs)
        exact = exact[0] if isinstance(exact, (tuple, list)) else exact
    same_shape = exact.shape == result.shape
    return bool(same_shape and not torch.equal(exact.double().nan_to_num(), result.double().nan_to_num()))


_KINDS = ("kernels", "sums")
_MOVING = frozenset({"detach", "alias", "_unsafe_view", "lift_fresh", "empty", "empty_like", "zeros", "ones"})


def _user_line() -> str:
    """`kernels.py:12`, the line of the user that calls."""
    frames = traceback.extract_stack()
    torch_folder = str(Path(sys.modules["torch"].__file__ or "").parent)
    frame = next(each for each in reversed(frames) if not each.filename.startswith((_HERE, torch_folder, "<")))
    return f"{Path(frame.filename).name}:{frame.lineno}"


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context in which the generators of NumPy and of PyTorch begin with `seed`; put back behind it."""
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    devices = list(range(torch.cuda.device_count())) if torch is not None and torch.cuda.is_initialized() else []
    forked = nullcontext() if torch is None else torch.random.fork_rng(devices)
    try:
        with forked:
            if torch is not None:
                torch.manual_seed(seed)
            yield
    finally:
        np.random.set_state(state)


def flat_function(
    function: Callable[..., Any], paths: list[tuple[int | str, ...]], seed: int
) -> Callable[..., tuple[Any, ...]]:
    """`function` with all leaves of its result in one tuple, whose places in the result go into `paths`."""

    def run(*arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        with seeded(seed):
            found = list(flatten_outputs(function(*arguments, **keywords)))
        paths[:] = [path for path, _ in found]
        return tuple(value for _, value in found)

    return run


def _with_paths(execution: Any, paths: Sequence[tuple[int | str, ...]], changed: Sequence[LeafPath]) -> Any:
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
        self, function: Callable[..., Any], arguments: Arguments, *, device: str, seed: int, roundoff: float | None
    ) -> None:
        """A benchmark on `device`. Results inside are moved by `roundoff`, or where that is None by that of float32."""
        super().__init__(device, is_raised=True)
        self._function, self._arguments, self._seed, self._roundoff = function, arguments, seed, roundoff
        self.trace: Trace | None = None
        self.failure: CapturedError | None = None

    def refusal(self, api: Any, framework: str) -> str | None:
        """None: it was written for this call."""
        return None

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> TorchExecution:
        """See `Engine.forward`."""
        call = self._with_own_roundoffs(call)
        paths: list[tuple[int | str, ...]] = []
        ready, places = self._bound(call, differentiate, paths)
        execution = self._run(call, ready)
        changed = [places[id(tensor)] for tensor in execution._changed]
        return _with_paths(execution, paths, changed)  # type: ignore[no-any-return]

    def _with_own_roundoffs(self, call: Call) -> Call:
        """`call` with what is moved inside moved by what the kernel may add in; storage formats say nothing of that."""
        given = [unit_roundoff(array.dtype) for array in self._floats]
        computed = max((roundoff for roundoff in given if roundoff <= NARROWEST_COMPUTED), default=_FLOAT32)
        narrower = computed / max(given, default=computed)
        inside = call.arithmetic_roundoff
        if self._roundoff is not None:
            inside *= self._roundoff / min(_FLOAT32, max(given, default=_FLOAT32))
        return replace(
            call,
            arithmetic_roundoff=inside,
            saved_roundoff=call.saved_roundoff * narrower,
            total_roundoff=max(inside, call.total_roundoff * narrower) if call.total_roundoff else 0.0,
        )

    @cached_property
    def _floats(self) -> list[Array]:
        arrays = [array_of(value) for value in self._arguments.tensors.values()]
        return [array for array in arrays if is_differentiable(array)]

    def _bound(
        self, call: Call, differentiate: tuple[LeafPath, ...], paths: list[tuple[int | str, ...]]
    ) -> tuple[ReadyCall, dict[int, LeafPath]]:
        torch = self._torch
        tensors: list[Any] = []
        places: dict[int, LeafPath] = {}
        wanted: dict[LeafPath, Any] = {}

        def convert(path: LeafPath, value: Any) -> Any:
            if isinstance(value, torch.dtype) and value.is_floating_point:
                return torch.float64
            if not hasattr(value, "__array_interface__"):
                return torch.device(self._device) if isinstance(value, torch.device) else value
            wide = value.dtype.kind not in "biu" and value.dtype.kind != "c"
            tensor = to_tensor(torch, np.array(value, dtype=np.float64 if wide else None, order="C")).to(self._device)
            if path in differentiate:
                wanted[path] = tensor.requires_grad_()
                with torch.enable_grad():
                    tensor = tensor.clone()  # which a kernel may write into
            tensors.append(tensor)
            places[id(tensor)] = path
            return tensor

        positional, keywords = self._arguments.with_arrays(call, convert)
        function = partial(self._watched, flat_function(self._function, paths, self._seed), positional, keywords)
        leaves = [wanted[path] for path in differentiate]
        return ReadyCall(torch, function, "the reference", tensors, leaves, True), places

    def _watched(self, function: Callable[..., Any], positional: Any, keywords: Any) -> Any:
        torch = self._torch
        default = torch.get_default_dtype()
        watching: AbstractContextManager[Any] = nullcontext()
        if self.trace is None:
            self.trace = Trace()
            watching = _watch(torch, self.trace)
        torch.set_default_dtype(torch.float64)
        try:
            with watching:
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

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Any:
        """See `Engine.forward`."""
        paths: list[tuple[int | str, ...]] = []
        changed: list[LeafPath] = []

        def run(*positional: Any, **keywords: Any) -> tuple[Any, ...]:
            given = leaves(replace(call, arguments=positional, keywords=keywords))
            before = [array_copy(value) for _, value in given]
            returned = flat_function(self._function, paths, self._seed)(*positional, **keywords)
            back = set(map(id, returned))
            pairs = [(path, value, old) for (path, value), old in zip(given, before) if id(value) not in back]
            written = [(path, value) for path, value, old in pairs if not np.array_equal(value, old)]
            changed[:] = [path for path, _ in written]
            return (*returned, *(value for _, value in written))

        return _with_paths(ReferenceExecution(Reference(run), call, ()), paths, changed)


class MindSporeSide(MindSporeEngine):
    """A callable that computes on tensors of MindSpore on the CPU, in float64 or in the dtypes of its arguments."""

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
        mindspore = self._mindspore
        tensors: dict[LeafPath, Any] = {}
        paths: list[tuple[int | str, ...]] = []

        def convert(path: LeafPath, value: Any) -> Any:
            if not hasattr(value, "__array_interface__"):
                return value
            tensors[path] = to_mindspore(mindspore, value, is_raised=self._is_raised)
            return tensors[path]

        positional, keywords = self._arguments.with_arrays(call, convert)
        function = flat_function(self._function, paths, self._seed)

        def run(*given: Any) -> Any:
            mindspore.set_seed(self._seed)
            placed = dict(zip(differentiate, given))
            arguments = Arguments(positional, keywords).mapped(lambda path, value: placed.get(path, value))
            return function(*arguments[0], **arguments[1])

        ready = MindSporeCall(mindspore, self.target, run, [*tensors.values()], tuple(map(tensors.get, differentiate)))
        return _with_paths(self._run(call, ready), paths, ())


@dataclass
class ArrayExecution:
    """Results of a kernel without gradients."""

    outputs: tuple[Output, ...]

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """Raise Unsupported."""
        raise Unsupported("there are no gradients of arrays")


class Kernel:
    """The kernel under test, or another one like it, which runs on copies of the user's own tensors."""

    def __init__(
        self, function: Any, arguments: Arguments, call: Call, wanted: tuple[LeafPath, ...], seed: int
    ) -> None:
        """`function` may be a result that is there already."""
        self._function, self._arguments, self._call = function, arguments, call
        self._wanted, self._seed = wanted, seed
        self.is_callable = callable(function)
        name = getattr(function, "__name__", "") or type(getattr(function, "func", function)).__name__
        self.name = name if self.is_callable else "the result"

    def run(self) -> Any:
        """An execution with what the kernel returns, and the arguments that it has changed."""
        framework, paths = self._arguments.framework, list[tuple[int | str, ...]]()
        if not self.is_callable:
            found = list(flatten_outputs(self._function))
            return self._execution([value for _, value in found], [path for path, _ in found], {}, is_given=True)
        if framework == "mindspore":
            side = MindSporeSide(self._function, self._arguments, self._seed, is_raised=False, target=_target())
            return side.forward(self._call, differentiate=self._wanted)
        copies: dict[LeafPath, Any] = {}

        def convert(path: LeafPath, value: Any) -> Any:
            if not framework_of(value):
                return value
            copies[path] = copy_of(value)
            return copies[path].requires_grad_() if path in self._wanted else copies[path]

        positional, keywords = self._arguments.mapped(convert)
        returned = flat_function(self._function, paths, self._seed)(*positional, **keywords)
        return self._execution(returned, paths, copies, is_given=False)

    def fill_memory(self, sizes: Sequence[int]) -> None:
        """Leave a pattern in the memory that the next tensors will most likely get."""
        first = next(iter(self._arguments.tensors.values()), None)
        if framework_of(first) == "torch":
            TorchEngine(str(first.device), is_raised=False).fill_memory(sizes, FILLING)
        elif framework_of(first) in ("numpy", ""):
            filled_memory(sizes, lambda count: np.full(count, FILLING, np.float32), lambda array: array)

    def _execution(
        self,
        returned: Sequence[Any],
        paths: Sequence[tuple[int | str, ...]],
        copies: Mapping[LeafPath, Any],
        *,
        is_given: bool,
    ) -> Any:
        tensors = self._arguments.tensors
        changed = [path for path, copy in copies.items() if not is_same(copy, tensors[path])]
        back = set(map(id, returned))
        changed = [path for path in changed if id(copies[path]) not in back]
        if self._arguments.framework == "torch" and all(framework_of(value) in ("torch", "") for value in returned):
            torch = sys.modules["torch"]
            leaves = [tensors[path] if is_given else copies[path] for path in self._wanted]
            ready = ReadyCall(torch, tuple, self.name, [], leaves, False, keeps_graph=is_given)
            written = [copies[path] for path in changed]
            return _with_paths(TorchExecution(ready, tuple(returned), nullcontext(), written), paths, changed)
        values = [*returned, *(copies[path] for path in changed)]
        places = [*paths, *((CHANGED, *path[1:]) for path in changed)]
        return ArrayExecution(
            tuple(
                Output(path, array_of(value) if framework_of(value) else value) for path, value in zip(places, values)
            )
        )


#: Whose bytes are all the same, so that elements of every dtype show that they were not written.
FILLING = float(np.frombuffer(b"\x7e" * 4, np.float32)[0])


def is_filling(array: Array) -> Array:
    """Which elements hold nothing but what memory was filled with."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.dtype.itemsize)
    found: Array = (data == 0x7E).all(axis=1).reshape(array.shape)
    return found


def is_array_of(tensor: Any, array: Array) -> bool:
    """Whether `array` shows the elements of `tensor`."""
    found = array_of(tensor)
    return bool(found.shape == array.shape and found.dtype == array.dtype and np.array_equal(found, array))


def _target() -> str:
    return str(sys.modules["mindspore"].get_context("device_target"))


def array_copy(value: Any) -> Any:
    """A copy of an array; anything else as it is."""
    return value.copy() if isinstance(value, np.ndarray) else value
