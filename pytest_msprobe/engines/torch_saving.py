"""What PyTorch keeps of a forward for its gradients, off by a rounding error as on a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from pytest_msprobe.engines.protocol import Call

if TYPE_CHECKING:
    from torch import Tensor


def perturbed_saving(torch: Any, call: Call, given: Iterable[Any]) -> AbstractContextManager[None]:
    """Context in which what is saved is off by `call.saved_roundoff`, up or down at random, except what was `given`.

    The gradient of tanh is 1 - y * y from the rounded y: an exact y would forgive nothing of what every device loses.
    """
    if not call.saved_roundoff:
        return nullcontext()
    generator = torch.Generator().manual_seed(call.saved_seed)
    untouched = {tensor.data_ptr() for value in given for tensor in _tensors(torch, value)}

    def pack(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.data_ptr() in untouched:
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.int8).to(tensor)
        return cast("Tensor", tensor.detach() * (1 + call.saved_roundoff * (2 * signs - 1)))

    hooks: AbstractContextManager[None] = torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved)
    return hooks


def _tensors(torch: Any, value: Any) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(torch, item)
