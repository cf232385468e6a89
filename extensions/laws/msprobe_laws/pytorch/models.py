"""Models of a PyTorch training as laws see them: names, ties, buffers, and what tells of causal attention."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from msprobe_collector.recording.guard import Guard
from msprobe_laws.law import Checked, Finding, Unchecked
from msprobe_laws.training import TIES_KEPT

Ties = list[tuple[str, str]]


@dataclass(slots=True)
class Model:
    """A Module that the script calls itself, with gradients.

    Attributes:
        root: itself.
        name: in findings.
        paths: names of its Modules by id.
        parameters: ids of its parameters.
        ties: names of parameters that are one, in pairs.
        batches: fingerprints of what it got since the last step on its parameters.
        modes: whether it was in training mode in its calls since then.
        trained: whether a step on it was taken in training mode.
        buffers: dtype and device of each.
    """

    root: weakref.ref[nn.Module]
    name: str
    paths: dict[int, str] = field(default_factory=dict)
    parameters: dict[int, str] = field(default_factory=dict)
    ties: Ties = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    is_poor: bool = False
    modes: list[bool] = field(default_factory=list)
    trained: bool = False
    buffers: dict[str, tuple[str, str]] = field(default_factory=dict)

    def look_again(self) -> None:
        """Other parameters may have come into the places of those that it had."""
        root = self.root()
        if root is not None:
            self.parameters = {id(item): path for path, item in root.named_parameters()}


def is_triangular(mask: Any) -> bool:
    """Whether a mask lets each position see itself and earlier ones only."""
    if not isinstance(mask, torch.Tensor) or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 2:
        return False
    square = mask.detach().reshape(-1, *mask.shape[-2:])[0, :64, :64]
    allowed = square if square.dtype is torch.bool else square > -1e4
    size = allowed.shape[0]
    upper = torch.triu(torch.ones(size, size, dtype=torch.bool, device=allowed.device), 1)
    return bool(allowed.diagonal().all()) and not bool((allowed & upper).any())


def looks_back(model: Model) -> bool:
    """Whether a buffer of the model is the mask of causal attention."""
    root = model.root()
    if root is None:
        return False
    for item in root.buffers():
        if item.dim() >= 2 and item.shape[-1] == item.shape[-2] and item.shape[-1] > 3:
            square = item.detach().reshape(-1, *item.shape[-2:])[0, :64, :64]
            values = square.float()
            is_lower = bool((torch.triu(values, 1) == 0).all()) and bool((torch.tril(values) != 0).any())
            if (is_lower and bool((values.diagonal() != 0).all())) or is_triangular(square):
                return True
            is_above = square.dtype is torch.bool and not bool(torch.tril(square).any())
            if is_above and bool(square[0, 1:].all()):
                return True
    return False


def has_modes(root: nn.Module) -> bool:
    """Whether training mode makes a difference."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return any(isinstance(module, kinds) and getattr(module, "p", 1) for module in root.modules())


def ties_of(module: nn.Module) -> Ties:
    """Names of parameters that are one, in pairs."""
    first: dict[int, str] = {}
    return [
        (first[id(item)], path)
        for path, item in module.named_parameters(remove_duplicate=False)
        if first.setdefault(id(item), path) != path
    ]


def model_of(module: nn.Module, known: Mapping[int, Model], lost: Mapping[nn.Module, Ties]) -> Model:
    """What laws see of a Module that the script calls; `known` are those that it has called before.

    Args:
        module: that is called.
        known: see above.
        lost: ties that Modules had until their parameters were replaced.
    """
    kind = type(module).__name__
    count = sum(model.name.partition(".")[0] == kind for model in known.values())
    model = Model(weakref.ref(module), f"{kind}.{count}" if count else kind)
    model.paths = {id(inner): path or kind for path, inner in module.named_modules()}
    model.ties = ties_of(module)
    for path, inner in module.named_modules() if lost else ():
        front = f"{path}." if path else ""
        model.ties += [(front + one, front + other) for one, other in lost.get(inner, ())]
    model.look_again()
    return model


def ties_kept(root: nn.Module, model: Model) -> Checked:
    """Whether parameters that were one, or that the model's configuration declares to be one, are."""
    found = []
    for one, other in model.ties:
        try:
            is_one = root.get_parameter(one) is root.get_parameter(other)
        except AttributeError:
            continue
        if not is_one:
            found.append(Finding(TIES_KEPT, other, f"it is no longer the same parameter as {one}"))
    declared = getattr(getattr(root, "config", None), "tie_word_embeddings", False) is True
    if declared and hasattr(root, "get_input_embeddings") and hasattr(root, "get_output_embeddings"):
        owner: Any = root
        inner, outer = owner.get_input_embeddings(), owner.get_output_embeddings()
        if outer is not None and inner is not None and outer.weight.data_ptr() != inner.weight.data_ptr():
            message = "config.tie_word_embeddings is True, and it is another parameter than the input embedding"
            found.append(Finding(TIES_KEPT, "output embedding", message))
    if not found and not model.ties and not declared:
        return Unchecked("the model has no tied parameters", is_moot=True)
    return found


def ids_in_optimizers() -> set[int]:
    """Ids of the parameters of all optimizers that there are."""
    found: set[int] = set()
    for item in gc.get_objects():
        if issubclass(type(item), torch.optim.Optimizer) and "param_groups" in vars(item):
            found.update(id(inner) for group in item.param_groups for inner in group["params"])
    return found


class _Thread(threading.local):
    """What runs in one thread: Modules, outermost first."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []


def is_away(guard: Guard) -> bool:
    """Whether what runs now is not the training: work of ours, compiled code, functions that torch.func transforms."""
    interpreters: Any = torch._C._functorch
    return (
        guard.activity.is_inside or torch.compiler.is_compiling() or interpreters.peek_interpreter_stack() is not None
    )


class Running:
    """What runs now.

    Attributes:
        models: those that the script has called with gradients, by id.
        backward: how many backward passes run.
        tokens: integer input of the model that was called last.
        is_causal: whether it was seen to look at earlier tokens only.
        cut: how many checkpoints run through which no gradient comes back.
    """

    def __init__(self) -> None:
        self._thread = _Thread()
        self.models: dict[int, Model] = {}
        self.backward = 0
        self.tokens: torch.Tensor | None = None
        self.is_causal = False
        self.cut = 0

    @property
    def modules(self) -> list[nn.Module]:
        """Modules that run in this thread, outermost first."""
        return self._thread.modules

    def path_of(self, module: nn.Module) -> str:
        """Its name in the model that has it."""
        for model in self.models.values():
            if id(module) in model.paths:
                return model.paths[id(module)]
        return type(module).__name__
