"""What ranks of a PyTorch training should have alike: replicas, by DistributedDataParallel or by reduced gradients."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps
from msprobe_laws.pytorch.models import is_away
from msprobe_laws.pytorch.tensors import address_of
from msprobe_laws.replacing import Replacing, argument


def world_size() -> int:
    """Return the number of ranks."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


class SummedGradients:
    """Which gradients the script has summed over ranks itself since the last step."""

    def __init__(self, guard: Guard) -> None:
        """See nothing yet."""
        self._guard = guard
        self._swaps = MethodSwaps()
        self._wrappers: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Ranks by the address of what was summed.
        self._summed: dict[int, tuple[int, ...]] = {}

    def install(self) -> None:
        """See from now on."""
        if distributed.is_available():
            from torch.nn.parallel import DistributedDataParallel

            replacing = Replacing(self._guard, functools.partial(is_away, self._guard))
            self._swaps.put(distributed, "all_reduce", replacing.before("a reduction", self._note))
            wrapped = replacing.after("a wrapper is made", lambda result, args, kwargs: self._wrappers.add(args[0]))
            self._swaps.put(DistributedDataParallel, "__init__", wrapped)

    def uninstall(self) -> None:
        """See no more."""
        self._swaps.uninstall()

    def replicas_of(self, items: Sequence[Any]) -> list[int]:
        """Return the ranks that hold replicas of these parameters, as DistributedDataParallel says; [] without it."""
        ids = set(map(id, items))
        for wrapper in list(self._wrappers):
            if any(id(item) in ids for item in wrapper.parameters()):
                return list(distributed.get_process_group_ranks(wrapper.process_group))
        return []

    def are_whole(self, items: Sequence[Any]) -> bool:
        """Return whether each rank has the gradients of these parameters whole, as replicas have."""
        world, summed = world_size(), self._of(items)
        is_summed = len(summed) == len(items) and set(map(len, summed.values())) == {world}
        return world == 1 or is_summed or len(self.replicas_of(items)) == world

    def ranks_of(self, items: Sequence[Any]) -> list[int]:
        """Return the ranks over which most of the gradients of these parameters were summed; [] for none."""
        summed = self._of(items)
        count = sum(item.grad is not None for item in items)
        groups = sorted(set(summed.values()), key=lambda ranks: -sum(other == ranks for other in summed.values()))
        return list(groups[0]) if groups and 2 * len(summed) >= count else []

    def names(self, items: Sequence[Any], names: Mapping[int, str]) -> list[str]:
        """Return the names of the parameters whose gradients were summed."""
        return [names[key] for key in self._of(items) if key in names]

    def forget(self) -> None:
        """Forget what was summed: a step is over."""
        self._summed.clear()

    def _of(self, items: Sequence[Any]) -> dict[int, tuple[int, ...]]:
        return {
            id(item): self._summed[address]
            for item in items
            if item.grad is not None and (address := address_of(item.grad)) in self._summed
        }

    def _note(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        tensor = argument(args, kwargs, 0, "tensor")
        group = argument(args, kwargs, 2, "group")
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and len(self._summed) < 100_000:
            ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
            if len(ranks) > 1:
                self._summed[address_of(tensor)] = tuple(ranks)
