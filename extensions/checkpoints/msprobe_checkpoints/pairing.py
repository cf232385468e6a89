"""The pairs of tensors of two checkpoints: by names where what they hold agrees, then by what they hold."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from operator import itemgetter

import numpy as np

from msprobe_checkpoints.files import Contents
from msprobe_checkpoints.layouts import Pool, TensorLayout, Way, distance, find_parts, is_constant, reordered, sampled
from msprobe_checkpoints.names import GATES, match_names, parted, roles
from msprobe_checkpoints.rules import Siblings
from msprobe_checkpoints.tensors import Joined, ReadError, Scaled, Tensor, TensorSlice, Transposed
from pytest_msprobe.numerics.expected import Relative

#: How names belong together of which one side has several.
_SEVERAL = "fused or divided layout"
_STATE = re.compile(r"(?:.*\.)?state\.(\d+)\.(\w+)$")
_KIND = re.compile(
    r"(?:^|[._])(exp_avg_sq|exp_avg|moment1|moment2|momentum_buffer|max_exp_avg_sq|adam_[mv]|moments|step$)(?=[._]|$)"
)
_GROUP = re.compile(r"(.*param_groups\.\d+)\.params\.(\d+)$")


class Pairing:
    """Finds the pairs of two checkpoints; what has no partner stays in `pools`."""

    def __init__(self, target: Contents, golden: Contents, progress: Callable[[], None]) -> None:
        """The pairs of these. `progress` is called now and then."""
        self.sides = (target, golden)
        self.layouts: list[TensorLayout] = []
        self.pools = (Pool(_plain(target)), Pool(_plain(golden)))
        self.states = (_states(target), _states(golden))
        self._progress = progress
        self.named: dict[tuple[str, str], str] = {}

    def run(self) -> None:
        """Find them.

        Raises:
            ReadError: a file ends early or cannot be opened.
        """
        ours, theirs = self.pools
        for states, pool in zip(self.states, self.pools):
            for names in states.values():
                for name in names.values():
                    del pool.tensors[name]
        _scale(ours.tensors, theirs.tensors)
        _scale(theirs.tensors, ours.tensors)
        self.named = {(match.target, match.golden): match.how for match in match_names(ours.tensors, theirs.tensors)}
        for name, other in self.named:
            self._add(self._of_names(name, other))
        self._by_content()
        virtual = [self._virtual(side) for side in (0, 1)]
        if any(virtual):
            self._by_content()
            self._padded([set(names) for names in virtual])
            for side in (0, 1):
                self._restore(side, virtual[side])
        self._reordered()
        self._by_siblings()
        for name, other in self.named:
            if name in ours.tensors and other in theirs.tensors:
                self._add(self._rest_of_names(name, other))
        self._constants()
        self._padded([set(pool.tensors) for pool in self.pools])
        self._copies()
        self._add_states()

    def _add(self, layout: TensorLayout | None) -> None:
        """Take a pair, and its names from the pools."""
        if layout is not None:
            self.layouts.append(layout)
            for pool, names in zip(self.pools, (layout.target, layout.golden)):
                for name in names:
                    pool.tensors.pop(name, None)

    def _of_names(self, name: str, other: str) -> TensorLayout | None:
        """Two tensors of matching names that hold the same, in some shape, up to a difference."""
        ours, theirs = self.pools[0].tensors[name], self.pools[1].tensors[other]
        how = self.named[name, other]
        try:
            if ours.size != theirs.size:
                return None
            a = sampled(ours)
            is_open = not ours.shape or is_constant(a)
            b = sampled(TensorSlice(theirs, ours.shape))
            # Weights of norms are all near one: what they are beside that must be near, too.
            with np.errstate(invalid="ignore"):
                is_near = max(distance(a, b), distance(a - a.sum() / a.size, b - b.sum() / b.size)) <= Relative.LAYOUT
            if not is_near and not (is_open and ours.shape == theirs.shape):
                return None
        except ReadError:  # said where they are compared
            is_open = True
        return TensorLayout((name,), (other,), ours, theirs, match=how, is_open=is_open)

    def _rest_of_names(self, name: str, other: str) -> TensorLayout | None:
        """Two tensors of matching names, which hold nothing that was found elsewhere."""
        ours, theirs = self.pools[0].tensors[name], self.pools[1].tensors[other]
        how = self.named[name, other]
        if ours.shape == theirs.shape:
            return TensorLayout((name,), (other,), ours, theirs, match=how, is_open=True)
        return _longer(name, other, ours, theirs, how)

    def _by_content(self) -> None:
        for side in (0, 1):
            wholes, parts = self.pools[side], self.pools[1 - side]
            for name in list(wholes.tensors):
                self._progress()
                fitting = find_parts(name, wholes.tensors[name], parts)
                if fitting is not None:
                    names, way, whole, joined, is_open = fitting
                    pair = (names[0], name) if side else (name, names[0])
                    match = self.named.get(pair, "content") if len(names) == 1 else _SEVERAL
                    self._add(TensorLayout.of_side(side, name, whole, names, joined, way, match, is_open))

    def _virtual(self, side: int) -> dict[str, tuple[str, ...]]:
        """Put tensors in the pool that are parts of one, or made of several; by name, which they stand for."""
        tensors, others = self.pools[side].tensors, self.pools[1 - side].tensors
        counts = Counter(chain.from_iterable(map(_places, others)))
        stacks: set[tuple[int, int, int]] = set()
        for name, tensor in others.items():
            stacks.update((counts[key], len(tensor.shape), tensor.size) for key in _places(name))
        made: dict[str, tuple[str, ...]] = {}
        families: dict[object, list[str]] = defaultdict(list)
        for name, tensor in list(tensors.items()):
            sizes = {tensor.width // parts for parts in range(1, 4) if len(tensor.shape) > 1}
            if any((tensor.shape[0], len(tensor.shape) - 1, size) in stacks for size in sizes):
                for index in range(tensor.shape[0]):
                    made[f"{name}[{index}]"] = (name,)
                    tensors[f"{name}[{index}]"] = TensorSlice(tensor, tensor.shape[1:], index * tensor.width)
            if name in self.sides[side].several and tensor.shape:
                inner = len(parted(self.sides[side].several[name])[1])
                for key in list(_places(name))[: len(parted(name)[1]) - inner]:
                    families[key].append(name)
        for number, names in enumerate(families.values()):
            parts = [tensors[name] for name in names]
            for axis in range(min(2, len(parts[0].shape))) if len(names) > 1 else ():
                shape = list(parts[0].shape)
                shape[axis] = sum(part.shape[axis] for part in parts if len(part.shape) > axis)
                joined = Way(axis=axis).joined(parts, tuple(shape))
                if joined is not None:
                    virtual = f"{names[0]} and others, {number}, {axis}"
                    made[virtual], tensors[virtual] = tuple(names), joined
        return made

    def _paired(self, side: int) -> set[str]:
        """The names of one side that have a partner."""
        return set(chain.from_iterable(layout.names(side) for layout in self.layouts))

    def _restore(self, side: int, virtual: Mapping[str, tuple[str, ...]]) -> None:
        """Take away what was put into a pool: the tensors themselves where no part has found a partner."""
        tensors = self.pools[side].tensors
        paired = self._paired(side)
        used = set(chain.from_iterable(names for name, names in virtual.items() if name in paired))
        for name, names in virtual.items():
            if not set(names) <= used or len(names) > 1:
                tensors.pop(name, None)
        for name in used:
            tensors.pop(name, None)
        for index, layout in enumerate(self.layouts):
            names = tuple(chain.from_iterable(_stands_for(name, virtual) for name in layout.names(side)))
            self.layouts[index] = layout.with_names(side, names)

    def _by_siblings(self) -> None:
        """Pairs that nothing but the names of their siblings tells: constants, and what differs everywhere."""
        siblings = Siblings(self.layouts)
        for side in (0, 1):
            wholes, parts = self.pools[side].tensors, self.pools[1 - side].tensors
            for name in list(wholes):
                for names, sibling in siblings.partners(name):
                    if name in wholes and all(partner in parts for partner in names):
                        self._add(self._as_sibling(side, name, names, sibling.way))

    def _as_sibling(self, side: int, name: str, names: tuple[str, ...], way: Way) -> TensorLayout | None:
        whole = self.pools[side].tensors[name]
        parts = [self.pools[1 - side].tensors[part] for part in names]
        view = way.view(whole)
        joined = way.joined(parts, view.shape)
        if joined is None:
            return None
        match = _SEVERAL if len(names) > 1 else "siblings"
        return TensorLayout.of_side(side, name, view, names, joined, way, match, True)

    def _constants(self) -> None:
        """What is left and constant, such as weights of norms that are all one, in the order of its names."""
        alike: dict[object, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for side, pool in enumerate(self.pools):
            for name, tensor in pool.tensors.items():
                values = sampled(tensor)
                if values.size and len(set(values.tolist())) == 1:
                    kind = roles(name).get("affine"), roles(name).get("moment"), roles(name).get("statistic")
                    alike[tensor.shape, complex(values[0]), kind][side].append(name)
        for names, others in alike.values():
            for name, other in zip(sorted(names, key=_numbers_first), sorted(others, key=_numbers_first)):
                ours, theirs = self.pools[0].tensors[name], self.pools[1].tensors[other]
                self._add(TensorLayout((name,), (other,), ours, theirs, match="content", is_open=True))

    def _padded(self, names: Sequence[set[str]]) -> None:
        """Vocabularies of other names, of which one side has more rows; one of the names is among `names`."""
        vocabularies = [list(filter(_is_vocabulary, pool.tensors)) for pool in self.pools]
        for name, other in product(*vocabularies):
            ours, theirs = self.pools[0].tensors.get(name), self.pools[1].tensors.get(other)
            if ours is not None and theirs is not None and (name in names[0] or other in names[1]):
                layout = _longer(name, other, ours, theirs, "content")
                if layout is not None and distance(sampled(layout.left), sampled(layout.right)) <= Relative.LAYOUT:
                    self._add(layout)

    def _reordered(self) -> None:
        """Queries and keys whose heads, and recurrent layers whose gates, have their rows in another order."""
        candidates: dict[object, list[tuple[str, Tensor]]] = defaultdict(list)
        for other, theirs in self.pools[1].tensors.items():
            candidates[roles(other).get("attention"), parted(other)[1], theirs.shape].append((other, theirs))
            candidates[GATES.search(other) is None, theirs.shape].append((other, theirs))
        for name, ours in list(self.pools[0].tensors.items()):
            role, is_of_pytorch = roles(name).get("attention"), GATES.search(name) is not None
            is_recurrent = role not in ("q", "k")
            # Where both names are PyTorch's, the order of gates is, too.
            key = (is_of_pytorch, ours.shape) if is_recurrent else (role, parted(name)[1], ours.shape)
            for other, theirs in candidates[key]:
                way = reordered(ours, theirs, is_recurrent=is_recurrent)
                joined = way.joined([theirs], ours.shape) if way is not None else None
                if way is not None and joined is not None and other in self.pools[1].tensors:
                    match = self.named.get((name, other), "content")
                    self._add(TensorLayout((name,), (other,), ours, joined, way, match))
                    break

    def _copies(self) -> None:
        """What several ranks hold alike is compared with what the copy of another rank was compared with."""
        for side, contents in enumerate(self.sides):
            paired: dict[str, list[tuple[str, TensorLayout]]] = defaultdict(list)
            for layout in self.layouts:
                name, *more = layout.names(side)
                if not more and name in contents.several:
                    plain = contents.several[name]
                    paired[plain].append((name, layout))
                    if is_constant(sampled(contents.tensors[name])):
                        paired[parted(plain)[0]].append((name, layout))
            for name, tensor in list(self.pools[side].tensors.items()):
                plain = contents.several.get(name, "")
                alike: list[tuple[float, TensorLayout]] = []
                for other, layout in paired[plain] or paired[parted(plain)[0]]:
                    copy = contents.tensors[other]
                    if copy.shape == tensor.shape:
                        alike.append((distance(sampled(tensor), sampled(copy)), layout))
                if alike:
                    _, layout = min(alike, key=lambda pair: pair[0])
                    of_copy = (layout.left, layout.right)[side]
                    view = layout.way.view(tensor) if isinstance(of_copy, Transposed) else tensor
                    held = {("left", "right")[side]: view}
                    self._add(layout.with_names(side, (name,), match="copies of ranks", is_open=True, **held))

    def _add_states(self) -> None:
        """What an optimizer holds of each parameter, in the layout of the parameter."""
        for layout in list(self.layouts):
            kinds = [self._kinds_of(layout, side) for side in (0, 1)]
            for kind in list(kinds[0][0]):
                if all(kind in of_parameter for of_parameter in chain(*kinds)):
                    chosen = [tuple(map(itemgetter(kind), of_side)) for of_side in kinds]
                    for of_state in self._as_parameter(layout, chosen):
                        self._add(of_state)
        for side, contents in enumerate(self.sides):
            paired = self._paired(side)
            for kinds_of_parameter in self.states[side].values():
                for name in kinds_of_parameter.values():
                    if name not in paired:
                        self.pools[side].tensors[name] = contents.tensors[name]

    def _kinds_of(self, layout: TensorLayout, side: int) -> list[dict[str, str]]:
        """What the optimizer of one side holds of each of its parameters: names by kind."""
        return [self.states[side].get(name, {}) for name in layout.names(side)]

    def _as_parameter(self, layout: TensorLayout, names: list[tuple[str, ...]]) -> Iterator[TensorLayout]:
        """The tensors of both sides, of these names, as the layout of their parameter has them."""
        parts = [list(map(contents.tensors.__getitem__, of_side)) for contents, of_side in zip(self.sides, names)]
        match = "" if names[0] == names[1] else "their parameter"
        if all(part.size == 1 for part in chain(*parts)):  # the step, once for each parameter
            for number in range(max(map(len, names))):
                name, other = (of_side[number % len(of_side)] for of_side in names)
                ours, theirs = (of_side[number % len(of_side)] for of_side in parts)
                yield TensorLayout((name,), (other,), ours, theirs, match=match, is_open=True)
            return
        views: list[Tensor | None] = []
        for of_side, of_parameter in zip(parts, (layout.left, layout.right)):
            if len(of_side) > 1 or isinstance(of_parameter, Joined):
                views.append(None)
            else:
                is_turned = isinstance(of_parameter, Transposed)
                views.append(layout.way.view(of_side[0]) if is_turned else of_side[0])
        shape = next((view.shape for view in views if view is not None), None)
        if shape is None:
            return
        joined = [view or layout.way.joined(of_side, shape) for view, of_side in zip(views, parts)]
        if joined[0] is None or joined[1] is None:
            return
        if joined[0].size == joined[1].size:
            yield TensorLayout(names[0], names[1], joined[0], joined[1], layout.way, match, is_open=True)
        elif longer := _longer(names[0][0], names[1][0], joined[0], joined[1], match):
            yield replace(longer, is_open=True)


def _numbers_first(name: str) -> tuple[tuple[int, ...], str]:
    """A sort key for names: by the numbers in them, then by their words."""
    return parted(name)[::-1]


def _is_vocabulary(name: str) -> bool:
    return "vocabulary" in roles(name)


def _plain(contents: Contents) -> dict[str, Tensor]:
    """The tensors without dimensions of 1 in those of several; parts of ranks that hold nothing are left out."""
    tensors = {name: tensor for name, tensor in contents.tensors.items() if tensor.size or name not in contents.several}
    largest: dict[object, tuple[int, ...]] = {}
    for name, tensor in tensors.items():
        key = contents.several.get(name, name), len(tensor.shape)
        largest[key] = tuple(map(max, tensor.shape, largest.get(key, tensor.shape)))
    for name, tensor in tensors.items():
        sizes = largest[contents.several.get(name, name), len(tensor.shape)]
        shape = tuple(size for size, most in zip(tensor.shape, sizes) if most != 1)
        if 1 < len(tensor.shape) != len(shape) and "scale" not in name:
            tensors[name] = TensorSlice(tensor, shape or (1,))
    return tensors


def _places(name: str) -> Iterator[tuple[object, ...]]:
    """The name without each of its numbers: what names have in common that differ in that number."""
    words, numbers = parted(name)
    yield from ((words, numbers[:place], numbers[place + 1 :]) for place in range(len(numbers)))


def _stands_for(name: str, virtual: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    names = virtual.get(name, ())
    return names if len(names) > 1 else (name,)


def _longer(name: str, other: str, ours: Tensor, theirs: Tensor, how: str) -> TensorLayout | None:
    """Two tensors of which one has more rows than the other, as a vocabulary that was padded."""
    if not (_is_vocabulary(name) and _is_vocabulary(other)) or not (ours.size and theirs.size and ours.shape):
        return None
    if ours.shape[1:] != theirs.shape[1:]:
        return None
    rows, longer = min(ours.shape[0], theirs.shape[0]), max(ours, theirs, key=lambda tensor: tensor.size)
    first, second = (TensorSlice(tensor, (rows, *tensor.shape[1:])) for tensor in (ours, theirs))
    rest = TensorSlice(longer, (longer.shape[0] - rows, *longer.shape[1:]), rows * longer.width)
    return TensorLayout((name,), (other,), first, second, match=how, rest=rest)


def _scale(tensors: dict[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Multiply numbers of 8 bits by the scale that stands beside them, which is taken from the tensors."""
    for name, tensor in list(tensors.items()):
        module = name.rpartition(".")[0]
        is_quantized = tensor.array_dtype.itemsize == 1 and tensor.dtype.name != "Bool" and len(tensor.shape) == 2
        if is_quantized and (name not in other or other[name].dtype is not tensor.dtype):
            beside = [
                scale for scale in tensors if scale.rpartition(".")[0] in (module, name) and "scale" in scale.lower()
            ]
            if len(beside) == 1:
                try:
                    tensors[name] = Scaled(tensor, tensors[beside[0]])
                except ReadError:
                    continue
                del tensors[beside[0]]


def _states(contents: Contents) -> dict[str, dict[str, str]]:
    """The names of what an optimizer holds of each parameter: by name of the parameter, and kind."""
    numbered: dict[int, dict[str, str]] = defaultdict(dict)
    named: list[str] = []
    parameters: list[str] = []
    for name in contents.tensors:
        match = _STATE.match(name)
        if match is not None:
            numbered[int(match[1])][match[2]] = name
        else:
            (named if _KIND.search(name) else parameters).append(name)
    ends: dict[str, str | None] = {}  # None where several end so
    for parameter in parameters:
        words = parameter.split(".")
        for place in range(len(words)):
            end = ".".join(words[place:])
            ends[end] = None if end in ends else parameter
    states: dict[str, dict[str, str]] = defaultdict(dict)
    for number, parameter in _numbered(contents, numbered, parameters, ends).items():
        kinds = states[parameter]  # a parameter of an optimizer without states has none
        for kind, name in numbered.get(number, {}).items():
            kinds[roles(f".{kind}").get("moment", kind)] = name
    for name in named:
        owner = _owner(name, ends)
        if owner is not None:
            states[owner][roles(name).get("moment") or _KIND.findall(name)[0]] = name
    return states


def _owner(name: str, ends: Mapping[str, str | None]) -> str | None:
    """The parameter whose name stands in that of a state, the longest part of it first; None without one."""
    words = name.split(".")
    for size in range(len(words) - 1, 0, -1):
        for place in range(len(words) - size + 1):
            if owner := ends.get(".".join(words[place : place + size])):
                return owner
    return None


def is_order(entry: str) -> bool:
    """Whether a value says which number an optimizer gives to a parameter, or the name of that."""
    return re.search(r"(?:^|[.])param_groups\.\d+\.param(?:s|_names)\.\d+$", entry) is not None


def _numbered(
    contents: Contents, states: Mapping[int, dict[str, str]], parameters: list[str], ends: Mapping[str, str | None]
) -> dict[int, str]:
    """The parameters that the numbers of an optimizer mean: by its names, else by their order where shapes agree."""
    numbers: list[int] = []
    names: dict[int, str] = {}
    for entry, value in contents.entries.items():
        match = _GROUP.match(entry)
        if match is not None and isinstance(value, int):
            numbers.append(value)
            parameter = ends.get(str(contents.entries.get(f"{match[1]}.param_names.{match[2]}")))
            if parameter is not None:
                names[value] = parameter
    if len(names) == len(numbers):
        return names
    tensors = contents.tensors
    trained: dict[object, str] = {}
    for name in parameters:
        if tensors[name].dtype.name.startswith(("Float", "BFloat")) and "running_" not in name:
            trained.setdefault(tensors[name].key or name, name)
    plain = list(trained.values())
    for order in (plain, sorted(plain, key=lambda name: len(tensors[name].shape) < 2)):
        if len(order) == len(numbers) and all(
            _has_shape(tensors, states.get(number, {}), tensors[name].shape) for name, number in zip(order, numbers)
        ):
            return dict(zip(numbers, order))
    return {}


def _has_shape(tensors: Mapping[str, Tensor], kinds: Mapping[str, str], shape: tuple[int, ...]) -> bool:
    """Whether what an optimizer holds of a parameter, names by kind, has a shape; its step has none."""
    return all(tensors[name].shape == shape for kind, name in kinds.items() if kind != "step")
