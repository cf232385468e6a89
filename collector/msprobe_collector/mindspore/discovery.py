"""Which callables of the installed MindSpore are APIs: found by looking, less a list of those that are not meant.

- Cells and their parameters, and communication that ends after `wait`.
- Names of APIs that were bound before collecting began, and that cannot be reached.
- Primitives that Cells hold as attributes, seen at the `__call__` of their classes.
- Functions under `mindspore.jit`: recorded from outside, with the originals in place while they compile and run.
- Cells and their parameters by their names, and communication that ends after `wait`.
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from msprobe_collector import logger
from msprobe_collector.configuration import ApiList, ApiPlace
from msprobe_collector.mindspore.mindspore_internals import graph_executors
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.observing import Waits, named_layers
from msprobe_collector.recording.swaps import ApiTarget, MethodSwaps

_TENSOR = "mindspore.Tensor"
#: mindspore.ops has its functions too; they are communication there as well.
_COMMUNICATION = "mindspore.ops.communication"


def find_apis(user: ApiList) -> list[ApiTarget]:
    """Every API to hook, in the order in which names win: the first place of a callable names it where others share it.

    Args:
        user: what the user's YAML adds and removes. A place that does not exist is warned about.
    """
    import yaml

    content = yaml.safe_load((Path(__file__).parent / "hooked_apis.yaml").read_text(encoding="utf-8"))
    denied = {ApiPlace(module, name) for module, names in content["deny"].items() for name in names.split()}
    denied.update(user.remove)
    operators = tuple(content["tensor_operators"].split())
    types = {module: api_type for api_type, modules in content["families"].items() for module in modules}
    homes = {id(value): _COMMUNICATION for value in vars(resolve(_COMMUNICATION) or object).values() if callable(value)}
    # Of this class itself, and of none below it, are tuples, dicts and texts of the compiler: no kernel computes them.
    machinery = resolve("mindspore.ops.Primitive")
    targets: list[ApiTarget] = []
    for module, api_type in types.items():
        owner = resolve(module)
        if owner is None:  # an older MindSpore
            continue
        unlisted = content["unlisted"].get(module, "").split()
        names = _tensor_names(owner, operators) if module == _TENSOR else _public_names(owner, unlisted)
        for target in _targets(owner, module, api_type, names):
            home = homes.get(id(target.original), module)
            if type(target.original) is not machinery and not {(module, target.name), (home, target.name)} & denied:
                targets.append(replace(target, call=f"{types[home]}.{target.name}"))
    return targets + list(_added(user.add, types, denied))


def resolve(path: str) -> Any:
    """Return the module or class at the dotted `path`, or None."""
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        return getattr(resolve(module), name, None) if module else None


def _targets(owner: Any, module: str, api_type: str, names: Iterable[str]) -> Iterator[ApiTarget]:
    for name in names:
        original = getattr(owner, name, None)
        if callable(original) and not inspect.isclass(original) and not inspect.ismodule(original):
            yield ApiTarget(owner, name, original, f"{api_type}.{name}")


def _public_names(owner: Any, unlisted: list[str]) -> list[str]:
    listed = getattr(owner, "__all__", None) or dir(owner)
    return sorted({name for name in (*listed, *unlisted) if not name.startswith("_")})


def _tensor_names(tensor: Any, operators: tuple[str, ...]) -> list[str]:
    methods = [
        name
        for name in dir(tensor)
        if not name.startswith("_") and not isinstance(inspect.getattr_static(tensor, name), (property, staticmethod))
    ]
    return methods + [name for name in operators if hasattr(tensor, name)]


def _added(places: Iterable[ApiPlace], types: dict[str, str], denied: set[ApiPlace]) -> Iterator[ApiTarget]:
    for module, name in places:
        owner = resolve(module)
        if not callable(getattr(owner, name, None)):
            logger.warning("api_list adds %s.%s, which is not a callable here; it is not collected", module, name)
        elif (module, name) not in denied:
            yield from _targets(owner, module, types.get(module, module), (name,))


#: Modules of the framework whose own names are replaced too: its layers call what users would.
_LAYERS = ("mindspore.nn.layer", "mindspore.nn.loss", "mindspore.mint.nn")


def unreachable_names(targets: Sequence[ApiTarget]) -> list[str]:
    """APIs that something other than a module's names refers to, such as a class attribute or a default argument.

    Calls through these references are not collected. Costs a look at every container in memory, once.
    """
    by_identity = {id(target.original): target.call for target in reversed(targets)}  # the first names it
    names: set[str] = set()
    for holder in gc.get_objects():
        if type(holder) is dict and "__module__" in holder and not _is_framework(str(holder.get("__module__"))):
            names.update(filter(None, map(by_identity.get, map(id, holder.values()))))
        elif type(holder) is type(_is_framework) and not _is_framework(holder.__module__ or ""):
            names.update(filter(None, map(by_identity.get, map(id, holder.__defaults__ or ()))))
    return sorted(names)


def is_searched(module: str) -> bool:
    """Return whether names in `module` are replaced that hold an API."""
    return not _is_framework(module) or module.startswith(_LAYERS)


def _is_framework(module: str) -> bool:
    return module.split(".")[0] in ("mindspore", "msprobe_collector")


class Wrap(Protocol):
    """Makes a recorded callable."""

    def __call__(
        self, original: Callable[..., Any], call: str, *, attributes: Mapping[str, Any] | None
    ) -> Callable[..., Any]:
        """`original`, recorded as calls of `call` with the constructor's `attributes`."""


class PrimitiveCalls:
    """Records calls of the primitives of watched models as `Primitive.{attribute}.{Class}`.

    Nothing is put on a primitive itself: a copy of one, or a pickle, is what it would be without the collector. The
    calls of a copy leave no records.
    """

    def __init__(self, wrap: Wrap, guard: Guard) -> None:
        """Prepare.

        Args:
            wrap: makes a recorded callable.
            guard: its activity says whether a recorded call runs, so that calls inside are not recorded.
        """
        self._wrap = wrap
        self._guard = guard
        self._activity = guard.activity
        #: By id of the primitive, which stays its own while the primitive is kept here too.
        self._recorded: dict[int, tuple[Any, Callable[..., Any]]] = {}
        self._calls: dict[type, Callable[..., Any]] = {}
        self._swaps = MethodSwaps()

    def watch(self, models: Sequence[Any]) -> None:
        """Add the primitives of `models`, also those in lists; one under several names keeps its first."""
        for _, cell in named_cells(models):
            for name, primitive in _primitives_of(cell):
                if id(primitive) not in self._recorded:
                    self._guard.faults.guarded(f"Primitive.{name}", self._watch, name, primitive)

    def _watch(self, name: str, primitive: Any) -> None:
        kind = type(primitive)
        if kind not in self._calls and not self._swaps.are_in:
            self._calls[kind] = kind.__call__
        call = functools.partial(self._calls.get(kind, kind.__call__), primitive)
        recorded = self._wrap(call, f"Primitive.{name}.{kind.__name__}", attributes=constructor_attributes(primitive))
        self._recorded[id(primitive)] = (primitive, recorded)

    def install(self) -> None:
        """See the calls from now on."""
        if not self._swaps.are_in:
            for kind in self._calls:
                self._swaps.put(kind, "__call__", self._seen)

    def uninstall(self) -> None:
        """Put the originals back."""
        self._swaps.uninstall()

    def _seen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorded, activity = self._recorded, self._activity

        @functools.wraps(original)
        def call(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            if activity.is_inside or id(primitive) not in recorded:
                return original(primitive, *args, **kwargs)
            return recorded[id(primitive)][1](*args, **kwargs)

        return call


def constructor_attributes(primitive: Any) -> dict[str, Any]:
    """What the primitive's class was called with, defaults included (`stride`, `transpose_b`, `epsilon`).

    They are in `init_attrs`, and where a base class has overwritten that (LRN), stand as attributes of their names.
    """
    attributes = {**vars(primitive), **primitive.init_attrs}
    return {name: attributes[name] for name in _constructor_parameters(type(primitive).__init__) if name in attributes}


@cache
def _constructor_parameters(constructor: Callable[..., None]) -> tuple[str, ...]:
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind not in variadic)


#: What a Cell makes itself when the script registers a hook on it.
_OF_HOOKS = ("CellBackwardHook", "HookBackward")


def _primitives_of(cell: Any) -> Iterator[tuple[str, Any]]:
    from mindspore.ops import Primitive

    for name, primitive in cell._primitives.items():
        if primitive is not None and type(primitive).__name__ not in _OF_HOOKS:
            yield name, primitive
    for name, value in vars(cell).items():
        if isinstance(value, (list, tuple)):
            yield from ((f"{name}.{index}", item) for index, item in enumerate(value) if isinstance(item, Primitive))


class JitCalls:
    """Records calls of jit functions as `Jit.{function}`, and keeps the compiler away from recorded callables."""

    def __init__(
        self,
        wrap: Callable[[Callable[..., Any], str], Callable[..., Any]],
        guard: Guard,
        *,
        originals_in_place: Callable[[], AbstractContextManager[None]],
        records: bool,
    ) -> None:
        """Prepare.

        Args:
            wrap: makes a recorded callable.
            guard: keeps faults away from training.
            originals_in_place: a context in which nothing is hooked.
            records: whether calls become records (level L1, mix).
        """
        self._wrap = wrap
        self._guard = guard
        self._originals_in_place = originals_in_place
        self._records = records
        #: Regions of captured bytecode that are open, one in another.
        self._depth = 0
        #: Of each context that is entered, whether a stand-in for its function enters it.
        self._stand_ins: list[bool] = []
        self._leave: Callable[..., Any] = lambda *_: None
        self._swaps = MethodSwaps()

    def install(self) -> None:
        """See jit calls from now on."""
        if not self._swaps.are_in:
            api = graph_executors()
            self._swaps.put(api._JitExecutor, "__call__", self._executor_call)
            self._swaps.put(api.PIJitCaptureContext, "__enter__", self._enter)
            self._swaps.put(api.PIJitCaptureContext, "__exit__", self._exit)

    def uninstall(self) -> None:
        """Put the originals back."""
        self._swaps.uninstall()

    def _executor_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
            # A method gets its object first, which is not an argument of the record.
            is_method = executor.obj is not None

            def run(*arguments: Any, **kwargs: Any) -> Any:
                with self._originals_in_place():
                    return original(executor, *args[:is_method], *arguments, **kwargs)

            recorded = self._guard.enter(
                "a jit function", self._recorded, run, executor.fn, executor.obj, otherwise=run
            )
            return recorded(*args[is_method:], **kwargs)

        return call

    def _recorded(self, run: Callable[..., Any], function: Any, instance: Any = None) -> Callable[..., Any]:
        """`run`, recorded as a call of `function` where calls become records; `instance` may have it as a method."""
        if not self._records:
            return run
        name = getattr(function, "__name__", type(function).__name__)
        return self._wrap(run, f"Jit.{type(instance).__name__ if name == 'construct' else name}")

    @contextmanager
    def _region(self) -> Iterator[None]:
        """A region whose bytecode is captured: nothing is hooked in it, nor in regions inside it."""
        self._depth += 1
        try:
            with self._originals_in_place():
                yield
        finally:
            self._depth -= 1

    def _enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def enter(context: Any) -> Any:
            """Let the context run what stands for its function, which enters the context itself when it is recorded."""
            is_outermost = self._depth == 0
            self._stand_ins.append(is_outermost)
            if not is_outermost:
                return original(context)
            function = context.fn

            def stand_in(*args: Any, **kwargs: Any) -> Any:
                context.fn = function
                return self._run_captured(original, context, args, kwargs)

            context.fn = stand_in
            return context

        return enter

    def _exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self._leave = original

        @functools.wraps(original)
        def leave(context: Any, *error: Any) -> Any:
            # It was entered by the original where a start() came inside.
            if self._stand_ins and self._stand_ins.pop():
                return None
            return original(context, *error)

        return leave

    def _run_captured(self, enter: Callable[..., Any], context: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run the function of `context` as its jit does, recorded; a method's object is no argument of the record."""
        function, leave = context.fn, self._leave
        is_method = getattr(function, "__name__", "") == "construct"

        def run(*arguments: Any, **kwargs: Any) -> Any:
            with self._region():
                enter(context)
                try:
                    return function(*args[:is_method], *arguments, **kwargs)
                finally:
                    leave(context, None, None, None)

        recorded = self._guard.enter("a jit function", self._recorded, run, function, *args[:is_method], otherwise=run)
        return recorded(*args[is_method:], **kwargs)


def named_cells(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(path, Cell) of every Cell below the `models`, each once under its first path; the models have the path ""."""
    return named_layers(models, lambda model: model.cells_and_names())


def own_parameters(cell: Any) -> dict[str, Any]:
    """Return the parameters that stand on `cell` itself, by the last segment of their names.

    Those whose names end alike are told apart by the attributes that hold them.
    """
    held = {name: parameter for name, parameter in cell._params.items() if parameter is not None}
    ends = [parameter.name.rpartition(".")[2] for parameter in held.values()]
    return {name if ends.count(end) > 1 else end: parameter for end, (name, parameter) in zip(ends, held.items())}


class MindSporeWaits(Waits):
    """Sees the training wait on handles, and lets operations of a batch be named by recorded functions."""

    def _is_handle(self, value: Any) -> bool:
        return type(value).__name__ in ("CommHandle", "CommHandle_")

    def _must_wait(self, handle: Any) -> bool:
        return getattr(handle, "handle", None) is not None

    def _put(self, swaps: MethodSwaps) -> None:
        from mindspore.communication import comm_func
        from mindspore.mint import distributed
        from mindspore.ops import function

        newer = getattr(function, "comm_func", None)  # MindSpore 2.7.1
        for owner in dict.fromkeys(getattr(module, "CommHandle", None) for module in (comm_func, newer)):
            if owner is not None and "wait" in vars(owner):
                swaps.put(owner, "wait", self.seen_wait)
        for module in (distributed, newer):
            # It takes only the very functions isend and irecv, whose names hold recorded ones now.
            if (owner := getattr(module, "P2POp", None)) is not None:
                swaps.put(owner, "__new__", lambda new: staticmethod(_with_originals(new)))


def _with_originals(new: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(new)
    def make(cls: type, op: Any, *args: Any, **kwargs: Any) -> Any:
        return new(cls, getattr(op, "__wrapped__", op), *args, **kwargs)

    return make
