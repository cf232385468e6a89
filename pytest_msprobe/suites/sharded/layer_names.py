"""Which layer of the logical run a numbered layer of a rank is: pipeline stages and ranks of experts count from 0."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.suites.sharded.ranks import RankDump

#: Layers that frameworks put around others; they have no counterpart in the logical run.
WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_NUMBER = re.compile(r"(?:^|(?<=\.))(\d+)(?=\.|$)")
#: Names of groups whose ranks have layers of their own.
_SHARING_LAYERS = ("pp", "ep")
#: By how much the numbers of a rank's layers are lower than those of the logical run, by what stands before them.
Offsets = Mapping[str, int]


def layer_path(cell: str) -> str:
    """The path of a layer without wrappers: `blocks.0.attn` of `Module.module.blocks.0.attn.Attention`."""
    return without_wrappers(".".join(cell.split(".")[1:-1]))


def without_wrappers(path: str) -> str:
    """A path without the names of wrappers."""
    return ".".join(word for word in path.split(".") if word not in WRAPPERS)


def renamed(path: str, offsets: Offsets) -> str:
    """A path of a rank as the logical run calls it."""
    if not offsets:
        return path
    parts = _NUMBER.split(path)
    before = ""
    for place in range(1, len(parts), 2):
        before = "".join(parts[:place])
        if before in offsets:
            parts[place] = str(int(parts[place]) + offsets[before])
    return "".join(parts)


def offsets_of(logical: RankDump, ranks: Iterable[RankDump]) -> dict[int, Offsets]:
    """The offsets of each rank whose numbered layers are fewer than those of the logical run, and begin at 0.

    The parameters tell; where they are sharded as well, the place of the rank in the group that shares the layers does.
    """
    whole = _Layers(logical)
    all_offsets: dict[int, Offsets] = {}
    numbers: dict[Path, dict[str, set[int]]] = {}
    for rank in ranks:
        layers = _Layers(rank, numbers.get(rank.twin.path))
        numbers[rank.twin.path] = layers.numbers
        offsets: dict[str, int] = {}
        for before in sorted(layers.numbers, key=len):
            count, total = len(layers.numbers[before]), len(whole.numbers.get(renamed(before, offsets), ()))
            if layers.numbers[before] == set(range(count)) and count < total:
                offset = _offset(before, offsets, layers, whole, (count, total))
                if offset:
                    offsets[before] = offset
        if offsets:
            all_offsets[rank.number] = offsets
    return all_offsets


def _offset(before: str, offsets: Offsets, layers: _Layers, whole: _Layers, counts: tuple[int, int]) -> int:
    """How much lower the numbers behind `before` are: by parameters, else by the place in a group; 0 for none."""
    count, total = counts
    groups = layers.dump.membership.groups
    sharing = {name: group.index * count for name, group in groups.items() if len(group.ranks) * count == total}
    if named := [place for name, place in sharing.items() if name in _SHARING_LAYERS]:
        return named[0]  # whatever parameters say: a stage may have loaded those of another one
    fitting: dict[int, int] = {}
    for path, statistics in layers.parameters.items():
        if path.startswith(before):
            for offset in range(total - count + 1):
                if whole.parameters.get(renamed(path, {**offsets, before: offset})) == statistics:
                    fitting[offset] = fitting.get(offset, 0) + 1
    best = max(fitting.values(), default=0)
    nearest = [offset for offset, number in fitting.items() if number == best]
    return nearest[0] if len(nearest) == 1 else next(iter(sharing.values()), 0)


class _Layers:
    """The layers of a dump.

    Attributes:
        dump: that has them.
        numbers: of numbered layers, by what stands before the number.
    """

    def __init__(self, dump: RankDump, numbers: dict[str, set[int]] | None = None) -> None:
        """Those of `dump`; `numbers` where another dump with the same records has told them."""
        self.dump = dump
        self.numbers = {} if numbers is None else numbers
        if numbers is not None:
            return
        for operation in dump.operations:
            if operation.is_cell and operation.phase == "forward":
                path = layer_path(operation.name)
                for match in _NUMBER.finditer(path):
                    self.numbers.setdefault(path[: match.start()], set()).add(int(match[1]))

    @cached_property
    def parameters(self) -> dict[str, tuple[object, ...]]:
        """Statistics of the parameters of each layer, by its path."""
        parameters: dict[str, tuple[object, ...]] = {}
        for operation in self.dump.operations:
            is_layer = operation.is_cell and operation.phase == "forward"
            if is_layer and (statistics := tuple(_statistics(self.dump, operation.record))):
                parameters.setdefault(layer_path(operation.name), statistics)
        return parameters


def _statistics(dump: RankDump, record: str) -> Iterator[Sequence[object]]:
    try:
        leaves = dump.leaves(record)
    except DumpError:
        return
    for leaf in leaves:
        # A scale of ones, or a bias of zeros, is the same in every layer.
        if leaf.path.startswith("parameters.") and leaf.statistics[0] != leaf.statistics[1]:
            yield (leaf.path, leaf.shape, *leaf.statistics)
