"""Hyper-parameters of optimizers of PyTorch, per parameter group."""

from __future__ import annotations

from typing import Any

import torch

from msprobe_collector.recording.plain_values import OMITTED, plain_fields, shortest


def held_by(optimizer: Any) -> Any:
    """Return the optimizer inside a wrapper, or the optimizer itself.

    A wrapper such as accelerate's shows the groups and the state of the one that it holds, as its `optimizer`. One that
    never ran `Optimizer.__init__`, and so has no hooks, may hold it under any name.
    """
    while True:
        held = [getattr(optimizer, "optimizer", None)]
        if isinstance(optimizer, torch.optim.Optimizer) and not has_hooks(optimizer):
            held += vars(optimizer).values()
        inner = [value for value in held if isinstance(value, torch.optim.Optimizer) and value is not optimizer]
        if not inner:
            return optimizer
        optimizer = inner[0]


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has run `Optimizer.__init__`: a wrapper may not have, and is none by itself."""
    return "_optimizer_step_pre_hooks" in vars(optimizer)


def grouped_parameters(optimizer: Any) -> list[list[Any]]:
    """Return the parameters of each group."""
    return [list(group["params"]) for group in optimizer.param_groups]


def group_settings(optimizer: Any) -> list[dict[str, object]]:
    """The hyper-parameters of each group of `optimizer.param_groups`, in its order.

    Args:
        optimizer: a torch.optim.Optimizer, or one that has `param_groups` as it has.

    Returns:
        One dict per group of all that the group holds besides its parameters, under the optimizer's names (`lr`,
        `betas`, `weight_decay`, `fused`, ...): None, bool, int, float, str, lists and dicts of these. A tensor with one
        element, such as the `lr` of a capturable optimizer, is given as its number; other tensors are left out. Where a
        scheduler has noted it, `initial_lr` is there too.
    """
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, (list, tuple)):
        return []
    return [_settings(group) for group in groups if isinstance(group, dict)]


def _settings(group: dict[Any, Any]) -> dict[str, object]:
    fields = (field for field in group.items() if field[0] not in ("params", "param_names"))
    return plain_fields(fields, number_of)


def number_of(value: Any) -> Any:
    """The number of a tensor with one element; OMITTED for other tensors, None for what is no tensor."""
    if isinstance(value, torch.dtype):
        return str(value)
    if not isinstance(value, torch.Tensor):
        return None
    if value.numel() != 1 or isinstance(value, torch.nn.Parameter) or value.is_meta or value.is_complex():
        return OMITTED
    return shortest(value.item(), str(value.dtype).removeprefix("torch."))
