"""What PyTorch says of its models, as `msprobe_laws.models.ModelFramework` asks it, and what runs now."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from msprobe_collector.recording.guard import Guard
from msprobe_laws import models
from msprobe_laws.pytorch.tensors import first
from pytest_msprobe.numerics.expected import Absolute

MODE_HINT = "train() is missing after eval()?"


def parts(root: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """See `Framework`."""
    modules: Iterable[tuple[str, nn.Module]] = root.named_modules()
    return modules


def parameters(root: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """See `Framework`."""
    return root.named_parameters(remove_duplicate=False)


def own_parameters(part: nn.Module) -> list[Any]:
    """See `Framework`."""
    return [item for item in part._parameters.values() if item is not None]


def parameter_at(root: nn.Module, path: str) -> Any:
    """See `Framework`."""
    try:
        return root.get_parameter(path)
    except AttributeError:
        return None


def buffers(root: nn.Module) -> Mapping[str, tuple[str, str]]:
    """See `Framework`."""
    return {path: (str(item.dtype), str(item.device)) for path, item in root.named_buffers()}


def has_modes(root: nn.Module) -> bool:
    """See `Framework`."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return any(isinstance(module, kinds) and getattr(module, "p", 1) for module in root.modules())


def declared_tie(root: Any) -> tuple[Any, Any] | None:
    """See `Framework`; models of HuggingFace declare one."""
    if getattr(getattr(root, "config", None), "tie_word_embeddings", False) is not True:
        return None
    if not hasattr(root, "get_input_embeddings") or not hasattr(root, "get_output_embeddings"):
        return None
    embeddings = root.get_input_embeddings(), root.get_output_embeddings()
    return None if None in embeddings else (embeddings[0].weight, embeddings[1].weight)


def ids_in_optimizers() -> set[int]:
    """See `Framework`."""
    ids: set[int] = set()
    for item in gc.get_objects():
        if issubclass(type(item), torch.optim.Optimizer) and "param_groups" in vars(item):
            ids.update(map(id, parameters_of(item)))
    return ids


def some_bytes(parameter: Any) -> bytes:
    """See `Framework`."""
    return first(parameter, 64).tobytes()


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer; what it has twice stands there twice."""
    return [item for group in optimizer.param_groups for item in group["params"]]


def is_triangular(mask: Any) -> bool:
    """Return whether a mask lets each position see itself and earlier ones only."""
    if not isinstance(mask, torch.Tensor) or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 2:
        return False
    square = mask.detach().reshape(-1, *mask.shape[-2:])[0, :64, :64]
    allowed = square if square.dtype is torch.bool else square > Absolute.MASKED_SCORE
    size = allowed.shape[0]
    upper = torch.triu(torch.ones(size, size, dtype=torch.bool, device=allowed.device), 1)
    return bool(allowed.diagonal().all()) and not bool((allowed & upper).any())


def looks_back(root: nn.Module) -> bool:
    """Return whether a buffer of the model is the mask of causal attention."""
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


def is_away(guard: Guard) -> bool:
    """Return whether what runs is not the training: work of ours, compiled code, what torch.func transforms."""
    interpreters: Any = torch._C._functorch
    return (
        guard.activity.is_inside or torch.compiler.is_compiling() or interpreters.peek_interpreter_stack() is not None
    )


class TorchRunning(models.Running):
    """What runs now.

    Attributes:
        backward: how many backward passes run.
        is_causal: whether the model that was called last was seen to look at earlier tokens only.
        cut: how many checkpoints run through which no gradient comes back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.backward = self.cut = 0
        self.is_causal = False
