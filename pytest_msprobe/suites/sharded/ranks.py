"""The ranks of a training step and the logical run that they are judged by, read once; which steps belong together."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain, combinations, count
from math import isfinite, prod
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from msprobe_collector.dump_format import Dump, DumpError
from msprobe_collector.dump_format.dump import RANK, Slot
from msprobe_collector.dump_format.leaves import Leaf, flatten
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.tensors import TENSOR_FOLDER, open_plain
from msprobe_collector.dump_format.yaml_files import read_plain

if TYPE_CHECKING:
    from pytest_msprobe.suites.sharded.placements import Axis, Grid

#: The group of all ranks, which tells nothing that the others do not.
WORLD = "world"
#: Placements of a DTensor that are checked; terms of a mean, and shards of shards, are not.
_KIND = re.compile(r"R|S\((\d+)\)|P\(sum\)")
_DTENSOR = re.compile(rb'"dtensor"\s*:')
_MICROBATCH = re.compile(rb'"microbatch"\s*:\s*(\d{1,9})')


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group that a rank is in: all its ranks, and which of them it is."""

    ranks: tuple[int, ...]
    index: int


@dataclass(frozen=True, slots=True)
class Membership:
    """What the header of a dump says of its rank.

    Attributes:
        world_size: number of ranks; 0 where it does not say.
        rank: its number; -1 where it does not say.
        groups: the process groups that it is in by their names, without those of one rank.
        problem: why the header cannot be used; "" when it can, or there is none.
    """

    world_size: int = 0
    rank: int = -1
    groups: Mapping[str, ProcessGroup] = field(default_factory=dict)
    problem: str = ""

    @classmethod
    def of(cls, encoded: object) -> Membership:
        """The form of `ranks` in a header, which is data of strangers."""
        if encoded is None:
            return cls()
        if not isinstance(encoded, dict):
            return cls(problem="its header `ranks` is not an object")
        size, rank, groups = encoded.get("world_size"), encoded.get("rank"), encoded.get("groups", {})
        if not _is_number(size) or not _is_number(rank) or not isinstance(groups, dict):
            return cls(problem="its header `ranks` has not the numbers world_size and rank, and an object of groups")
        memberships, problem = {}, ""
        for name, encoded_group in groups.items():
            group = _group(encoded_group)
            if name != WORLD and group is None:
                problem = problem or f"its header `ranks` has no ranks and index for the group {name!r}"
            elif name != WORLD and group is not None and len(group.ranks) > 1:
                memberships[name] = group
        return cls(size, rank, memberships, problem)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 24


def _group(encoded: object) -> ProcessGroup | None:
    if not isinstance(encoded, dict):
        return None
    ranks, index = encoded.get("ranks"), encoded.get("index")
    if not isinstance(ranks, list) or not all(map(_is_number, ranks)) or not isinstance(index, int):
        return None
    return ProcessGroup(tuple(ranks), index) if 0 <= index < len(ranks) else None


@dataclass(frozen=True, slots=True)
class Stated:
    """What a DTensor says of itself over one dimension of its mesh.

    Attributes:
        name: of the dimension.
        placement: as PyTorch writes it: `R`, `S(0)`, `P(sum)`.
        ranks: along the dimension, those of this rank; () where the mesh does not tell.
    """

    name: str
    placement: str
    ranks: tuple[int, ...]


def _lines_through(mesh: object, rank: int) -> list[tuple[int, ...]]:
    """The ranks along each dimension of a mesh (nested lists) that has `rank` in it; [] where it has not."""
    if not isinstance(mesh, list):
        return []
    if all(map(_is_number, mesh)):
        return [tuple(mesh)] if rank in mesh else []
    for row in mesh:
        if inner := _lines_through(row, rank):
            outer = []
            if len(inner) == 1:
                at = row.index(rank)
                outer = [other[at] for other in mesh if isinstance(other, list) and len(other) > at]
            return [tuple(outer) if all(map(_is_number, outer)) else (), *inner]
    return []


class RankDump(Dump):
    """The dump of one rank, or of the logical run.

    Attributes:
        number: of the rank.
        membership: what its header says of it.
        twin: the first rank of the step that has the same records, Cells and microbatches; itself where there is none.
    """

    def __init__(self, path: Path, data_dirs: Sequence[Path] = ()) -> None:
        """Read the file at `path`; see `Dump`.

        Raises:
            DumpError: it cannot be read, or is not a dump of values.
        """
        super().__init__(path, data_dirs)
        if self.task not in ("tensor", "statistics"):
            raise DumpError(
                f"a dump of task {self.task!r} holds no values; dump with tensor or statistics", file=str(path)
            )
        self.membership = Membership.of(self.ranks)
        self.number = 0
        self.twin = self

    def share(self, twins: dict[object, RankDump]) -> None:
        """Keep what is equal on many ranks once, and of the file where its records stand.

        Args:
            twins: the first dump of each kind; this one is added where it is of another.
        """
        numbers = tuple(map(self.microbatch, self._records))
        kind = tuple(self._records), tuple(self.parents.items()), numbers, self.problem
        self.twin = twins.setdefault(kind, self)
        self.__dict__["parents"] = self.twin.parents
        self._records = Slices.of(self.path, self._records, self.twin._records) or self._records

    @cached_property
    def operations(self) -> list[Operation]:
        """Its records in the order of the file, which is that of execution; one list for all twins."""
        if self.twin is not self:
            return self.twin.operations
        return [Operation.of(name, index) for index, name in enumerate(self.record_names)]

    def microbatch(self, record: str) -> int | None:
        """The microbatch that a record of a pipeline is of; None where it does not say."""
        match = _MICROBATCH.search(self.text(record))
        return None if match is None else int(match[1])

    def stated(self, leaf: Leaf) -> list[Stated]:
        """What the run itself says of a DTensor, of each dimension of its mesh; [] for other values.

        Raises:
            DumpError: the record cannot be decoded.
        """
        if _DTENSOR.search(self.text(leaf.place.record)) is None:
            return []
        value = self._decoded(leaf.place.record, "record")
        try:
            for step in (leaf.place.root, *leaf.place.steps, "dtensor"):
                value = value[step]
        except (LookupError, TypeError):
            return []
        if not isinstance(value, dict) or not isinstance(value.get("placements"), list):
            return []
        placements, names = value["placements"], value.get("mesh_dim_names")
        lines = _lines_through(value.get("mesh"), self.number)
        lines += [()] * (len(placements) - len(lines))
        labels = [f"dimension {at}" for at in range(len(placements))]
        if isinstance(names, list):
            labels[: len(names)] = map(str, names[: len(labels)])
        return [Stated(*of_dimension) for of_dimension in zip(labels, map(str, placements), lines)]

    def is_partial(self, leaf: Leaf) -> bool:
        """Whether the run itself says of a value that it is the terms of a sum (DTensor's `Partial`).

        Raises:
            DumpError: the record cannot be decoded.
        """
        return any(said.placement.startswith("P") for said in self.stated(leaf))

    def text(self, record: str) -> memoryview:
        """A record as the file has it: what is searched needs no decoding."""
        return memoryview(self._records[record])

    def leaves(self, record: str) -> list[Leaf]:
        """The values of `record`. Raises DumpError when it cannot be decoded."""
        return flatten(self.record(record))

    def held(self, record: str) -> dict[str, Leaf]:
        """The tensors of `record` by their places. Raises DumpError when it cannot be decoded."""
        return {leaf.path: leaf for leaf in self.leaves(record) if leaf.tensor is not None}


class Slices(Mapping[str, Any]):
    """The records of a file as they stand there, read again where they are asked for.

    The texts of 1,000 ranks are gigabytes, the places of their records some tens of kilobytes each.
    """

    def __init__(self, path: Path, places: Mapping[str, int], spans: array[int]) -> None:
        """Records of the file at `path`; `spans` are first bytes and the ones behind the last, by `places` of names."""
        self._path, self._spans = path, spans
        self.places = places
        self._first, self._text = 0, b""

    @classmethod
    def of(cls, path: Path, records: Mapping[str, Any], like: Mapping[str, Any]) -> Slices | None:
        """Those of a dump, with the names of `like`, which has the same; None where the file has them otherwise."""
        text, spans, at = read_plain(path), array("Q"), 0
        for raw in records.values():
            view = memoryview(raw)
            at = text.find(view, at)
            if at < 0:
                return None
            spans.extend((at, at + len(view)))
            at += len(view)
        if isinstance(like, Slices):
            return cls(path, like.places, spans)
        return cls(path, dict(zip(like, count())), spans)

    def __getitem__(self, name: str) -> memoryview:
        """The text of a record. Raises DumpError where the file is gone."""
        place = 2 * self.places[name]
        first, end = self._spans[place : place + 2]
        if first < self._first or end > self._first + len(self._text):
            try:
                with open_plain(self._path) as file:
                    file.seek(first)
                    # Bytes of a file that are read at a time.
                    self._first, self._text = first, file.read(max(end - first, 1 << 16))
            except OSError as error:
                raise DumpError(f"cannot be read: {error.strerror}", file=str(self._path), record=name) from None
        return memoryview(self._text)[first - self._first : end - self._first]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: object) -> bool:
        return name in self.places


def has_numbers(leaf: Leaf) -> bool:
    """Whether all statistics of a tensor are finite numbers."""
    return all(isinstance(number, (int, float)) and isfinite(number) for number in leaf.statistics)


def listed(names: Iterable[object], most: int = 8) -> str:
    """The first of some ranks or records, for people."""
    words = list(map(str, names))
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


def dumps_below(root: Path) -> list[Path]:
    """The dump.json files in a folder and those below, in the order of their names."""
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != TENSOR_FOLDER]  # it can hold 100,000 files, and no dump
        if "dump.json" in names:
            paths.append(Path(folder) / "dump.json")
    return sorted(paths)


def step_folders(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    """The dumps of each training step, by the folder that holds their ranks' folders."""
    steps: dict[Path, list[Path]] = {}
    for path in paths:
        is_of_rank = RANK.fullmatch(path.parent.name) or path.parent.name.startswith("proc")
        steps.setdefault(path.parent.parent if is_of_rank else path.parent, []).append(path)
    return steps


@dataclass
class ShardedStep:
    """A training step of the sharded run.

    Attributes:
        folder: of the step.
        ranks: the dumps that can be read, by the number of the rank.
        problems: what is missing or contradicts itself, one line each: a run with one is no success.
        unreadable: why a dump cannot be read, by its path.
        missing: ranks that the world has and the folder has not.
    """

    folder: Path
    ranks: dict[int, RankDump] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unreadable: dict[Path, DumpError] = field(default_factory=dict)
    missing: tuple[int, ...] = ()

    @classmethod
    def read(cls, folder: Path, paths: Sequence[Path], data_dirs: Sequence[Path]) -> ShardedStep:
        """The step whose dumps are at `paths`."""
        step = cls(folder)
        twins: dict[object, RankDump] = {}
        for place, path in enumerate(paths):
            try:
                dump = RankDump(path, data_dirs)
                dump.share(twins)
            except DumpError as error:
                step.unreadable[path] = error
                continue
            slot = Slot.of(path).rank
            number = dump.membership.rank if dump.membership.rank >= 0 else slot
            dump.number = place if number is None else number
            step._add(dump, slot)
        step._check()
        return step

    def _add(self, dump: RankDump, slot: int | None) -> None:
        if dump.membership.problem:
            self.problems.append(f"{dump.path}: {dump.membership.problem}; its process groups are not known")
        if slot is not None and slot != dump.number:
            self.problems.append(f"{dump.path}: its header says rank {dump.number}, its folder rank {slot}")
        if dump.number in self.ranks:
            first = self.ranks[dump.number].path
            self.problems.append(f"{dump.path}: is rank {dump.number} as {first} is, which is judged; remove one")
        else:
            self.ranks[dump.number] = dump

    def _check(self) -> None:
        sizes = {dump.membership.world_size for dump in self.ranks.values()} - {0}
        if len(sizes) > 1:
            said = ", ".join(f"rank {n} {dump.membership.world_size}" for n, dump in sorted(self.ranks.items()))
            self.problems.append(f"{self.folder}: the ranks do not agree on the world size: {said}")
        size = max(sizes, default=max(self.ranks, default=-1) + 1)
        self.missing = tuple(rank for rank in range(size) if rank not in self.ranks)
        if self.missing:
            self.problems.append(
                f"{self.folder}: {len(self.missing)} of {size} ranks are missing ({listed(self.missing)}): "
                "only what the others hold whole is judged"
            )
        self.ranks = dict(sorted(self.ranks.items()))

    @property
    def leader(self) -> RankDump | None:
        """The dump of the first rank that can be read, whose file has the items of the step."""
        return next(iter(self.ranks.values()), None)


class RunSteps:
    """The steps of a run, each read when it is asked for.

    Attributes:
        steps: the dumps of each step, by its folder.
    """

    def __init__(self, steps: dict[Path, list[Path]], data_dirs: Sequence[Path]) -> None:
        self.steps = steps
        self.folders = {path: folder for folder, paths in steps.items() for path in paths}
        self._read = cache(lambda folder: ShardedStep.read(folder, steps[folder], data_dirs))

    def step(self, path: Path) -> ShardedStep:
        """The step that the dump at `path` is of."""
        return self._read(self.folders[path])

    def problems(self) -> list[str]:
        """What is missing of the steps, or contradicts itself, one line each."""
        return [line for paths in self.steps.values() for line in self.step(paths[0]).problems]


def contradicted(readings: Sequence[Sequence[Axis]], stated: Sequence[Stated], dump: RankDump) -> Stated | None:
    """What a DTensor of a rank says of itself that none of these readings of its value is; None for nothing."""
    group_of = attrgetter("group")
    for said in stated:
        kind = _KIND.fullmatch(said.placement)
        names = {name for name, group in dump.membership.groups.items() if group.ranks == said.ranks}
        over = [axis for axes in readings for axis in axes if axis.group in names]
        if kind is None or not over or any(names.isdisjoint(map(group_of, axes)) for axes in readings):
            continue
        if not any(_is_said(axis, kind[0][0], kind[1]) for axis in over):
            return said
    return None


def _is_said(axis: Axis, kind: str, dimension: str | None) -> bool:
    return axis.kind == kind and (kind != "S" or axis.dimension in (int(dimension or 0), -1))


class Grids:
    """What the ranks that hold a value may be to each other, found once for each set of them."""

    def __init__(self) -> None:
        self._grids: dict[tuple[tuple[int, ...], int], list[Grid]] = {}

    def of(self, holders: Sequence[RankDump], calls: int) -> list[Grid]:
        """The grids of these ranks, with `calls` records each: as headers say, else as their number allows."""
        from pytest_msprobe.suites.sharded.placements import Grid

        ranks = tuple(dump.number for dump in holders)
        if (ranks, calls) not in self._grids:
            distinct: dict[object, Grid] = {}  # groups of one set of ranks may have several names
            for names, places in coordinates({dump.number: dump.membership for dump in holders}):
                along = list(zip(*places.values()))
                grid = Grid(names, tuple(map(len, map(set, along))), tuple(places.values()))
                distinct.setdefault(frozenset(along), grid)
            guesses = list(Grid.guesses(len(ranks))) if len(ranks) > 1 else [Grid((), (), ((),))]
            self._grids[ranks, calls] = [grid.with_calls(calls) for grid in distinct.values() or guesses]
        return self._grids[ranks, calls]


def coordinates(memberships: Mapping[int, Membership]) -> Iterator[tuple[tuple[str, ...], dict[int, tuple[int, ...]]]]:
    """(names of groups, place of each rank in them) that tell the ranks apart; the fewest groups first."""
    places = _dimensions(memberships)
    sizes = {name: len(set(indices.values())) for name, indices in places.items()}
    varying = [name for name, size in sizes.items() if size > 1][:6]
    for number in range(1, len(varying) + 1):
        for chosen in combinations(varying, number):
            place_of = {}
            for rank in memberships:
                place_of[rank] = tuple(places[name][rank] for name in chosen)
            if len(set(place_of.values())) == len(memberships) == prod(map(sizes.__getitem__, chosen)):
                yield chosen, place_of


def _dimensions(memberships: Mapping[int, Membership]) -> dict[str, dict[int, int]]:
    """The place of each rank along each dimension: in groups of one name, or of names of their own that share none."""
    named: dict[str, dict[int, int]] = {}
    single: dict[tuple[int, ...], str] = {}
    for rank, membership in memberships.items():
        for name, group in membership.groups.items():
            if all(name in other.groups for other in memberships.values()):
                named.setdefault(name, {})[rank] = group.index
            else:
                single.setdefault(group.ranks, name)
    while single:
        ranks, name = next(iter(single.items()))
        beside = [ranks]
        for other in single:
            if len(other) == len(ranks) and set(other).isdisjoint(chain.from_iterable(beside)):
                beside.append(other)
        places: dict[int, int] = {}
        for other in beside:
            del single[other]
            places |= dict(zip(other, count()))
        if memberships.keys() <= places.keys():
            named[f"groups as {name}"] = {rank: places[rank] for rank in memberships}
    return named
