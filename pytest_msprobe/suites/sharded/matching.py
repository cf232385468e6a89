"""Which records of the ranks are parts of which record of the logical run.

Modules are known by their paths, whatever their classes and wrappers are; API calls by the layer in which they ran and
their place among the calls of that API there; microbatches are calls that a rank made more often.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from msprobe_collector.dump_format import DumpError, is_communication
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.suites.sharded.ranks import RankDump

#: The place of a value of a parameter in the record of an optimizer, what it is, and the name; of state the kind, too.
_PLACE = re.compile(r"((?:input|output)\.(?:\d+\.)?(parameters|gradients|state)\.)(.*)", re.DOTALL)
_BEFORE = "input.parameters."


def parameter_of(path: str) -> str:
    """The name of the parameter that a value at the optimizer is of; "" for none."""
    match = _PLACE.fullmatch(path)
    if match is None:
        return ""
    return match[3].rpartition(".")[0] if match[2] == "state" else match[3]


def named(path: str, change: Callable[[str], str]) -> str:
    """The place of a value at the optimizer with another name of its parameter; other places as they are."""
    match, name = _PLACE.fullmatch(path), parameter_of(path)
    return path if match is None else match[1] + change(name) + match[3].removeprefix(name)


class LogicalCopies:
    """What the logical run has for values that only ranks hold.

    The last stage of a pipeline has a copy of a tied embedding by another name. What it holds
    before the step tells which.
    """

    def __init__(self, leaves: Mapping[str, Leaf], fits: Callable[[str, Leaf], bool]) -> None:
        """`leaves` are values of the logical run at the optimizer, by their places.

        `fits` says whether what ranks have at a place before the step is what the logical run has in a leaf.
        """
        self._leaves, self._fits = leaves, fits
        self._originals = cache(self._original_of)

    def original(self, path: str) -> tuple[str, str]:
        """The place that a value of the ranks has in the logical run, and ""; or "" and why it cannot be told."""
        name = parameter_of(path)
        if not name:
            return "", "only ranks hold it"
        original, reason = self._originals(name)
        return named(path, lambda _: original) if original else "", reason

    def leaf(self, path: str) -> Leaf | None:
        """What the logical run has at this place."""
        return self._leaves.get(path)

    def _original_of(self, name: str) -> tuple[str, str]:
        if _BEFORE + name in self._leaves:
            return name, ""
        equal = []
        for path, leaf in self._leaves.items():
            if path.startswith(_BEFORE) and self._fits(_BEFORE + name, leaf):
                equal.append(path.removeprefix(_BEFORE))
        if len(equal) == 1:
            return equal[0], ""
        what = f"{len(equal)} parameters have" if equal else "no parameter has"
        return "", f"only ranks hold it, and {what} the same values in the logical run"


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


_OPTIMIZER = "Optimizer."
#: Records of what clips gradients.
CLIP = "Optimizer.clip"
_STEP = ("optimizer", "step")

#: What a record is, apart from which call of it: kind, layer or path, name, direction.
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Calls:
    """The records of one rank that are parts of one logical record.

    Attributes:
        dump: of the rank.
        records: in the order of their calls: several of microbatches.
    """

    dump: RankDump
    records: tuple[str, ...]


class MatchingIndex:
    """The records of a dump, or of several that have the same ones, by what they are.

    Attributes:
        dump: the first that holds them.
        keys: what each record is.
        calls: the records of a key, in the order of their calls.
        sequences: names of the API calls of each layer, in the order of execution.
        runs: the call of the layer in which an API call ran.
    """

    def __init__(self, dump: RankDump, layers: Offsets | None = None) -> None:
        """The records of `dump`; `layers` see `renamed`."""
        self.dump = dump
        self._layers = layers or {}
        self.keys: dict[str, Key] = {}
        self.calls: dict[Key, list[str]] = {}
        self.sequences: dict[str, list[str]] = {}
        self.runs: dict[str, str] = {}
        for operation in dump.operations:
            if is_communication(operation.record):
                continue
            key = self._key(operation)
            self.keys[operation.record] = key
            self.calls.setdefault(key, []).append(operation.record)
            if key[0] == "call" and operation.phase == "forward":
                self.sequences.setdefault(key[1], []).append(operation.name)
        for key, records in self.calls.items():
            if key[0] == "layer":
                records.sort(key=_number)
            # Where microbatches are numbered, calls of none only find out about shapes.
            of_microbatches = [record for record in records if dump.microbatch(record) is not None]
            self.calls[key] = of_microbatches or records

    def _key(self, operation: Operation) -> Key:
        if operation.is_cell:
            return "layer", renamed(layer_path(operation.name), self._layers), operation.phase
        if operation.record.startswith(_OPTIMIZER):
            return ("optimizer", "clip") if operation.record.startswith(CLIP) else _STEP
        parent = self.dump.parents.get(operation.record)
        if parent is None and operation.phase == "backward":
            parent = self.dump.parents.get(f"{operation.call}.forward")
        layer = ""
        if parent is not None:
            self.runs[operation.record] = parent
            layer = renamed(layer_path(Operation.of(parent, 0).name), self._layers)
        return "call", layer, operation.name, operation.phase

    def rows(self, records: Sequence[str]) -> list[list[str]]:
        """Calls of one key, by the calls of the layer that they ran in, in their order; [] where those are unknown."""
        rows: dict[str, list[str]] = {}
        for record in records:
            if record not in self.runs:
                return []
            rows.setdefault(self.runs[record], []).append(record)
        return [rows[run] for run in sorted(rows, key=_number)]


def _number(record: str) -> int:
    number = Operation.of(record, 0).number
    return int(number) if number.isdecimal() else 0


class RecordMatching:
    """The parts of each logical record."""

    def __init__(self, logical: RankDump, ranks: Iterable[RankDump], layers: Mapping[int, Offsets]) -> None:
        """Parts among the records of `ranks`; `layers` are the offsets of pipeline stages by rank, see `renamed`."""
        self._logical = MatchingIndex(logical)
        self._makes_no_others = cache(self._no_other_calls)
        self._layers = layers
        indexes: dict[tuple[str, str], MatchingIndex] = {}
        self._ranks: list[tuple[RankDump, MatchingIndex]] = []
        for rank in ranks:
            offsets = layers.get(rank.number)
            kind = str(rank.twin.path), repr(offsets)
            if kind not in indexes:
                indexes[kind] = MatchingIndex(rank, offsets)
            self._ranks.append((rank, indexes[kind]))
        self._indexes = list(indexes.values())

    def parts(self, record: str) -> tuple[list[Calls], str]:
        """The records of each rank that has some for the logical `record`; and why they cannot be told, else ""."""
        key = self._logical.keys.get(record)
        if key is None:
            return [], "it is communication, which a run that is sharded otherwise has for itself"
        logical = self._logical.calls[key]
        held = {index: index.calls[key] for index in self._indexes if key in index.calls}
        if not held:
            return [], "no rank has such a record"
        counts = {}
        for index, records in held.items():
            # A dump without its end lacks the last calls, and is no reason to doubt those that it has.
            if len(held) == 1 or not index.dump.problem:
                counts[index.dump.number] = len(records)
        most = max(counts.values(), default=len(logical))
        if key == _STEP and set(counts.values()) != {len(logical)}:  # parameters are known by their names
            return [Calls(rank, tuple(held[index])) for rank, index in self._ranks if index in held], ""
        for number, count in counts.items():
            if count % len(logical):
                return [], f"rank {number} made {count} such calls, the logical run {len(logical)}"
            if count != most:
                return [], f"rank {number} made {count} such calls, other ranks {most}"
        times = most // len(logical)
        chosen = {index: tuple(self._of_rank(record, index, records, times)) for index, records in held.items()}
        parts = []
        for rank, index in self._ranks:
            if times and len(chosen.get(index, ())) == times:
                parts.append(Calls(rank, chosen[index]))
            elif rank.problem:
                return [], f"the dump of rank {rank.number} was cut before this record"
        return parts, "" if parts else "no rank has such a record"

    def _of_rank(self, record: str, index: MatchingIndex, held: Sequence[str], times: int) -> Sequence[str]:
        """Which `times` of the calls that a rank made are the logical `record`.

        A layer that makes a call several times makes it as often for every microbatch.
        """
        logical = self._logical.calls[self._logical.keys[record]]
        rows, others = self._logical.rows(logical), index.rows(held)
        lengths = {len(row) for row in (*rows, *others)}
        if times > 1 and len(lengths) == 1 and len(others) == times * len(rows):
            for place, row in enumerate(rows):
                if record in row:
                    return [other[row.index(record)] for other in others[place * times : (place + 1) * times]]
        place = logical.index(record) * times
        return held[place : place + times]

    def tensors(self, dump: RankDump, record: str) -> dict[str, Leaf]:
        """The tensors of a record by their places; those of optimizers by the names that the logical run gives them.

        Raises:
            DumpError: the record cannot be decoded.
        """
        leaves = dump.held(record)
        if not record.startswith(_OPTIMIZER):
            return leaves
        offsets = {} if dump is self._logical.dump else self._layers.get(dump.number, {})

        def logical_name(name: str) -> str:
            return renamed(without_wrappers(name), offsets)

        return {named(path, logical_name): leaf for path, leaf in leaves.items()}

    def updates(self) -> tuple[list[tuple[RankDump, str]], list[tuple[RankDump, str]]]:
        """The steps of optimizers of the logical run, and those of the ranks."""
        of_logical = [(self._logical.dump, record) for record in self._logical.calls.get(_STEP, ())]
        return of_logical, [(rank, record) for rank, index in self._ranks for record in index.calls.get(_STEP, ())]

    def is_update(self, record: str) -> bool:
        """Whether a logical record is the step of an optimizer."""
        return self._logical.keys.get(record) == _STEP

    def all_calls(self, record: str) -> tuple[list[str], list[Calls]]:
        """All calls of the logical `record`, in their order, and all those of the ranks; none where numbers differ."""
        key = self._logical.keys[record]
        parts = [Calls(rank, tuple(index.calls[key])) for rank, index in self._ranks if key in index.calls]
        if len({len(calls.records) for calls in parts}) != 1:
            return [], []
        return self._logical.calls[key], parts

    def is_certain(self, record: str) -> bool:
        """Whether it is certain that the parts are the same calls: a layer is, a call where the layer makes no others.

        Code that is written for several ranks may call other APIs, or the same ones for something else.
        """
        key = self._logical.keys.get(record)
        if key is None or key[0] != "call":
            return key is not None
        return self._makes_no_others(key[1])

    def _no_other_calls(self, layer: str) -> bool:
        """Whether a layer makes the calls of the logical run on all ranks, as often as there are microbatches."""
        logical = self._logical.sequences.get(layer, [])
        others = (index.sequences.get(layer, []) for index in self._indexes)
        return bool(logical) and all(other == logical * (len(other) // len(logical)) for other in others)

    def half_from(self) -> float:
        """The place of the first logical record from which on a rank has half dtypes; infinite for none."""
        places = []
        for index in self._indexes:
            names = index.dump.record_names
            first = next((place for place, name in enumerate(names) if index.dump.holds_half(name)), len(names))
            # Calls outside of layers may be other ones.
            behind = {key for key, (call, *_) in index.calls.items() if key[1] and index.dump.orders[call] >= first}
            places += [self._logical.dump.orders[name] for name, key in self._logical.keys.items() if key in behind]
        return min(places, default=math.inf)

    @cached_property
    def only_on_ranks(self) -> int:
        """How many records of ranks, communication aside, belong to no record of the logical run."""
        count = 0
        for _, index in self._ranks:
            count += sum(len(records) for key, records in index.calls.items() if key not in self._logical.calls)
        return count
