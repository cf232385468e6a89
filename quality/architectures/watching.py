"""What a step does, seen apart from the collector: calls that compute, and Modules through which gradients flow."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: Calls with tensors among their arguments that make new tensors without their values, or copy values as they are.
_WITHOUT_RESULT = frozenset(
    {"clone", "contiguous", "cpu", "empty_like", "ones_like", "zeros_like", "rand_like", "randn_like", "randint_like"}
    | {"new", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "normal_", "uniform_", "zero_"}
    | {"as_tensor", "tensor", "__set__", "__deepcopy__"}
)


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Tensors in lists, dicts, dataclasses and attributes of objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif depth < 4 and hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        value = list(vars(value).values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth + 1)


class CallLog(TorchFunctionMode):
    """Sees calls above the collector, and whether each that computes adds to dump.json.

    Attributes:
        seen: calls that compute, by name.
        lost: those of them that left nothing.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._folder = folder
        self._file: Path | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func` and look at what it did."""
        with torch._C.DisableTorchFunction():
            given = list(tensors_in((args, kwargs or {})))
            before = [(_memory(tensor), tensor._version) for tensor in given]
        size = self._size()
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "") or str(func)
        with torch._C.DisableTorchFunction():
            computes = bool(given) and name not in _WITHOUT_RESULT and _computes(given, before, result)
        if computes:
            self.seen[name] += 1
            self.lost[name] += self._size() == size
        return result

    def _size(self) -> int:
        if self._file is None:
            self._file = next(self._folder.rglob("dump.json"), None)
        return self._file.stat().st_size if self._file is not None else 0


def _computes(given: list[torch.Tensor], before: list[tuple[int, int]], result: Any) -> bool:
    """Whether a call put out values in memory that is not that of an argument, or changed an argument."""
    if any(tensor._version != version for tensor, (_, version) in zip(given, before)):
        return True
    memories = {memory for memory, _ in before}
    return any(tensor.numel() and _memory(tensor) not in memories for tensor in tensors_in(result))


def _memory(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse
        return id(tensor)


class ModuleLog:
    """Sees through which calls of Modules gradients flow.

    Attributes:
        names: the backward record that each such call ought to have.
    """

    def __init__(self, network: Any) -> None:
        self._labels = {
            module: f"Module.{path}.{type(module).__name__}" for path, module in network.named_modules() if path
        }
        self._calls: Counter[Any] = Counter()
        self.names: dict[str, None] = {}

    def watch(self) -> Callable[[], None]:
        """Watch until what is returned is called."""
        register = torch.nn.modules.module.register_module_forward_hook
        remove: Callable[[], None] = register(self._seen, with_kwargs=True).remove
        return remove

    def _seen(self, module: Any, args: Any, kwargs: Any, result: Any) -> None:
        label = self._labels.get(module)
        if label is None:
            return
        name = f"{label}.backward.{self._calls[module]}"
        self._calls[module] += 1
        given = {(tensor.grad_fn, tensor.output_nr) for tensor in tensors_in((args, kwargs))}
        for tensor in tensors_in(result):
            if tensor.grad_fn is not None and (tensor.grad_fn, tensor.output_nr) not in given:
                tensor.register_hook(lambda gradient: self.names.setdefault(name))
