"""Where gradients of tensors go: their edges in PyTorch's graph of backward nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

#: Shape and strides of a base, shape of a view of it, and the view's strides and offset in the base.
Part = tuple[Any, Any, Any, Any]


class Edge(NamedTuple):
    """Where the gradient of a tensor goes.

    Attributes:
        node: backward node, None for a leaf.
        output: which output of the node the tensor is.
        leaf: the tensor itself when it is a leaf.
        part: for a view whose base is changed through it: shape and strides of the base, shape of the view, and its
            strides and offset in the base.
    """

    node: Any
    output: int
    leaf: Any
    part: Part | None = None


def edge_of(tensor: Any) -> Edge | None:
    """Where the gradient of `tensor` goes; None where none flows."""
    if not tensor.requires_grad:
        return None
    node = tensor.grad_fn
    return Edge(node, tensor.output_nr, tensor if node is None else None)


def edge_of_base(view: Any) -> Edge | None:
    """Where the gradient of a tensor goes that is changed in place; for a view, through its base."""
    base = view._base if view._is_view() else None
    if base is None:
        return edge_of(view)
    if not base.requires_grad or base.grad_fn is None:
        return None
    offset = view.storage_offset() - base.storage_offset()
    part = (tuple(base.shape), base.stride(), tuple(view.shape), (view.stride(), offset))
    return Edge(base.grad_fn, base.output_nr, None, part)


def of_view(gradient: Any, part: Part | None) -> Any:
    """The part of a base's gradient that belongs to a view of it."""
    if part is None or gradient is None:
        return gradient
    base_shape, base_strides, shape, (strides, offset) = part
    whole = torch.empty_strided(base_shape, base_strides, dtype=gradient.dtype, device=gradient.device)
    return whole.copy_(gradient).as_strided(shape, strides, offset)
