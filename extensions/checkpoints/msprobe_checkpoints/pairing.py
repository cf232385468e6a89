"""The pairs of tensors of two checkpoints: by names where what they hold agrees, then by what they hold."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np

from msprobe_checkpoints.files import Contents
from msprobe_checkpoints.layouts import Layout, Pool, Way, distance, find_parts, is_constant, reordered, sampled
from msprobe_checkpoints.names import GATES, match_names, parted, roles
from msprobe_checkpoints.rules import Siblings
from msprobe_checkpoints.tensors import Joined, Part, ReadError, Scaled, Tensor, Transposed
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
        self.layouts: list[Layout] = []
        self.pools = (Pool(_plain(target)), Pool(_plain(golden)))
        self.states = (_states(target), _states(golden))
        self._progress = progress
        self.named: dict[tuple[str, str], str] = {}

    def run(self) -> None:
        """Find them.

        Raises:
            ReadError: a file ends early or cannot be opened.
        """
        left, right = self.pools
        for states, pool in zip(self.states, self.pools):
            for names in states.values():
                for name in names.values():
                    del pool.tensors[name]
        _scale(left.tensors, right.tensors)
        _scale(right.tensors, left.tensors)
        self.named = {(one.target, one.golden): one.how for one in match_names(left.tensors, right.tensors)}
        for one, other in self.named:
            self._add(self._of_names(one, other))
        self._by_content()
        virtual = [self._virtual(side) for side in (0, 1)]
        if any(virtual):
            self._by_content()
            self._padded([set(one) for one in virtual])
            for side in (0, 1):
                self._restore(side, virtual[side])
        self._reordered()
        self._by_siblings()
        for one, other in self.named:
            if one in left.tensors and other in right.tensors:
                self._add(self._rest_of_names(one, other))
        self._constants()
        self._padded([set(pool.tensors) for pool in self.pools])
        self._copies()
        self._add_states()

    def _add(self, layout: Layout | None) -> None:
        """Take a pair, and its names from the pools."""
        if layout is not None:
            self.layouts.append(layout)
            for pool, names in zip(self.pools, (layout.target, layout.golden)):
                for name in names:
                    pool.tensors.pop(name, None)

    def _of_names(self, name: str, other: str) -> Layout | None:
        """Two tensors of matching names that hold the same, in some shape, up to a difference."""
        left, right = self.pools[0].tensors[name], self.pools[1].tensors[other]
        how = self.named[name, other]
        try:
            if left.size != right.size:
                return None
            a = sampled(left)
            is_open = not left.shape or is_constant(a)
            b = sampled(Part(right, left.shape))
            # Weights of norms are all near one: what they are beside that must be near, too.
            with np.errstate(invalid="ignore"):
                is_near = max(distance(a, b), distance(a - a.sum() / a.size, b - b.sum() / b.size)) <= Relative.LAYOUT
            if not is_near and not (is_open and left.shape == right.shape):
                return None
        except ReadError:  # said where they are compared
            is_open = True
        return Layout((name,), (other,), left, right, match=how, is_open=is_open)

    def _rest_of_names(self, name: str, other: str) -> Layout | None:
        """Two tensors of matching names, which hold nothing that was found elsewhere."""
        left, right = self.pools[0].tensors[name], self.pools[1].tensors[other]
        how = self.named[name, other]
        if left.shape == right.shape:
            return Layout((name,), (other,), left, right, match=how, is_open=True)
        return _longer(name, other, left, right, how)

    def _by_content(self) -> None:
        for side in (0, 1):
            wholes, parts = self.pools[side], self.pools[1 - side]
            for name in list(wholes.tensors):
                self._progress()
                found = find_parts(name, wholes.tensors[name], parts)
                if found is not None:
                    names, way, whole, joined, is_open = found
                    pairs = (((name,), whole), (names, joined))
                    (target, left), (golden, right) = pairs if side == 0 else pairs[::-1]
                    match = self.named.get((target[0], golden[0]), "content") if len(names) == 1 else _SEVERAL
                    self._add(Layout(target, golden, left, right, way, match, is_open))

    def _virtual(self, side: int) -> dict[str, tuple[str, ...]]:
        """Put tensors in the pool that are parts of one, or made of several; by name, which they stand for."""
        tensors, other = self.pools[side].tensors, self.pools[1 - side].tensors
        counts = Counter(key for name in other for key in _places(name))
        stacks = {(counts[key], len(one.shape), one.size) for name, one in other.items() for key in _places(name)}
        found: dict[str, tuple[str, ...]] = {}
        families: dict[object, list[str]] = defaultdict(list)
        for name, tensor in list(tensors.items()):
            sizes = {tensor.width // parts for parts in range(1, 4) if len(tensor.shape) > 1}
            if any((tensor.shape[0], len(tensor.shape) - 1, size) in stacks for size in sizes):
                for index in range(tensor.shape[0]):
                    found[f"{name}[{index}]"] = (name,)
                    tensors[f"{name}[{index}]"] = Part(tensor, tensor.shape[1:], index * tensor.width)
            if name in self.sides[side].several and tensor.shape:
                inner = len(parted(self.sides[side].several[name])[1])
                for key in list(_places(name))[: len(parted(name)[1]) - inner]:
                    families[key].append(name)
        for number, names in enumerate(families.values()):
            parts = [tensors[name] for name in names]
            for axis in range(min(2, len(parts[0].shape))) if len(names) > 1 else ():
                shape = list(parts[0].shape)
                shape[axis] = sum(part.shape[axis] if len(part.shape) > axis else 0 for part in parts)
                joined = Way(axis=axis).joined(parts, tuple(shape))
                if joined is not None:
                    virtual = f"{names[0]} and others, {number}, {axis}"
                    found[virtual], tensors[virtual] = tuple(names), joined
        return found

    def _restore(self, side: int, virtual: Mapping[str, tuple[str, ...]]) -> None:
        """Take away what was put into a pool: the tensors themselves where no part has found a partner."""
        tensors = self.pools[side].tensors
        paired = {name for one in self.layouts for name in (one.target, one.golden)[side]}
        used = {name for one, names in virtual.items() if one in paired for name in names}
        for name, names in virtual.items():
            if not set(names) <= used or len(names) > 1:
                tensors.pop(name, None)
        for name in used:
            tensors.pop(name, None)
        for index, one in enumerate(self.layouts):
            names = tuple(part for name in (one.target, one.golden)[side] for part in _stands_for(name, virtual))
            self.layouts[index] = replace(one, target=names) if side == 0 else replace(one, golden=names)

    def _by_siblings(self) -> None:
        """Pairs that nothing but the names of their siblings tells: constants, and what differs everywhere."""
        siblings = Siblings(self.layouts)
        for side in (0, 1):
            wholes, parts = self.pools[side].tensors, self.pools[1 - side].tensors
            for name in list(wholes):
                for names, sibling in siblings.partners(name):
                    if name in wholes and all(one in parts for one in names):
                        self._add(self._as_sibling(side, name, names, sibling.way))

    def _as_sibling(self, side: int, name: str, names: tuple[str, ...], way: Way) -> Layout | None:
        whole = self.pools[side].tensors[name]
        parts = [self.pools[1 - side].tensors[one] for one in names]
        view = way.view(whole)
        joined = way.joined(parts, view.shape)
        if joined is None:
            return None
        pairs = (((name,), view), (names, joined))
        (target, left), (golden, right) = pairs if side == 0 else pairs[::-1]
        return Layout(target, golden, left, right, way, _SEVERAL if len(names) > 1 else "siblings", is_open=True)

    def _constants(self) -> None:
        """What is left and constant, such as weights of norms that are all one, in the order of its names."""
        alike: dict[object, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for side, pool in enumerate(self.pools):
            for name, tensor in pool.tensors.items():
                values = sampled(tensor)
                if values.size and len(set(values.tolist())) == 1:
                    kind = roles(name).get("affine"), roles(name).get("moment"), roles(name).get("statistic")
                    alike[tensor.shape, complex(values[0]), kind][side].append(name)
        for own, others in alike.values():
            for one, other in zip(*(sorted(names, key=lambda name: parted(name)[::-1]) for names in (own, others))):
                left, right = self.pools[0].tensors[one], self.pools[1].tensors[other]
                self._add(Layout((one,), (other,), left, right, match="content", is_open=True))

    def _padded(self, names: Sequence[set[str]]) -> None:
        """Vocabularies of other names, of which one side has more rows; one of the names is among `names`."""
        held = ([name for name in pool.tensors if "vocabulary" in roles(name)] for pool in self.pools)
        for name, other in product(*held):
            left, right = (pool.tensors.get(one) for pool, one in zip(self.pools, (name, other)))
            if left is not None and right is not None and (name in names[0] or other in names[1]):
                layout = _longer(name, other, left, right, "content")
                if layout is not None and distance(sampled(layout.left), sampled(layout.right)) <= Relative.LAYOUT:
                    self._add(layout)

    def _reordered(self) -> None:
        """Queries and keys whose heads, and recurrent layers whose gates, have their rows in another order."""
        known: dict[object, list[tuple[str, Tensor]]] = defaultdict(list)
        for other, right in self.pools[1].tensors.items():
            known[roles(other).get("attention"), parted(other)[1], right.shape].append((other, right))
            known[GATES.search(other) is None, right.shape].append((other, right))
        for name, left in list(self.pools[0].tensors.items()):
            role, is_of_pytorch = roles(name).get("attention"), GATES.search(name) is not None
            is_recurrent = role not in ("q", "k")
            # Where both names are PyTorch's, the order of gates is, too.
            key = (is_of_pytorch, left.shape) if is_recurrent else (role, parted(name)[1], left.shape)
            for other, right in known[key]:
                way = reordered(left, right, is_recurrent=is_recurrent)
                joined = way.joined([right], left.shape) if way is not None else None
                if way is not None and joined is not None and other in self.pools[1].tensors:
                    match = self.named.get((name, other), "content")
                    self._add(Layout((name,), (other,), left, joined, way, match))
                    break

    def _copies(self) -> None:
        """What several ranks hold alike is compared with what the copy of another rank was compared with."""
        for side, contents in enumerate(self.sides):
            paired: dict[str, list[tuple[str, Layout]]] = defaultdict(list)
            for one in self.layouts:
                name, *more = (one.target, one.golden)[side]
                if not more and name in contents.several:
                    plain = contents.several[name]
                    paired[plain].append((name, one))
                    if is_constant(sampled(contents.tensors[name])):
                        paired[parted(plain)[0]].append((name, one))
            for name, tensor in list(self.pools[side].tensors.items()):
                plain = contents.several.get(name, "")
                copies = paired[plain] or paired[parted(plain)[0]]
                known = [(contents.tensors[other], one) for other, one in copies]
                alike = [
                    (distance(sampled(tensor), sampled(one)), copy) for one, copy in known if one.shape == tensor.shape
                ]
                if alike:
                    _, copy = min(alike, key=lambda pair: pair[0])
                    of_copy = (copy.left, copy.right)[side]
                    own = copy.way.view(tensor) if isinstance(of_copy, Transposed) else tensor
                    copy = replace(copy, match="copies of ranks", is_open=True)
                    names, view = ("golden", "right") if side else ("target", "left")
                    self._add(replace(copy, **cast(Any, {names: (name,), view: own})))

    def _add_states(self) -> None:
        """What an optimizer holds of each parameter, in the layout of the parameter."""
        for layout in list(self.layouts):
            names = layout.target, layout.golden
            held = [[states.get(name, {}) for name in several] for states, several in zip(self.states, names)]
            for kind in list(held[0][0]):
                if all(kind in one for side in held for one in side):
                    chosen = [tuple(one[kind] for one in side) for side in held]
                    for one in self._as_parameter(layout, chosen):
                        self._add(one)
        paired = [{name for one in self.layouts for name in (one.target, one.golden)[side]} for side in (0, 1)]
        for contents, states, pool, known in zip(self.sides, self.states, self.pools, paired):
            left = [name for kinds in states.values() for name in kinds.values() if name not in known]
            pool.tensors.update({name: contents.tensors[name] for name in left})

    def _as_parameter(self, layout: Layout, names: list[tuple[str, ...]]) -> Iterator[Layout]:
        tensors = [[side.tensors[name] for name in several] for side, several in zip(self.sides, names)]
        match = "" if names[0] == names[1] else "their parameter"
        if all(one.size == 1 for side in tensors for one in side):  # the step, once for each parameter
            for number in range(max(map(len, names))):
                one, other = (several[number % len(several)] for several in names)
                first, second = (side[number % len(side)] for side in tensors)
                yield Layout((one,), (other,), first, second, match=match, is_open=True)
            return
        views: list[Tensor | None] = []
        for side, of_parameter in zip(tensors, (layout.left, layout.right)):
            if len(side) > 1 or isinstance(of_parameter, Joined):
                views.append(None)
            else:
                views.append(layout.way.view(side[0]) if isinstance(of_parameter, Transposed) else side[0])
        shape = next((view.shape for view in views if view is not None), None)
        if shape is None:
            return
        left, right = (view or layout.way.joined(side, shape) for view, side in zip(views, tensors))
        if left is not None and right is not None and left.size == right.size:
            yield Layout(names[0], names[1], left, right, layout.way, match, is_open=True)
        elif left is not None and right is not None:
            longer = _longer(names[0][0], names[1][0], left, right, match)
            if longer is not None:
                yield replace(longer, is_open=True)


def _plain(contents: Contents) -> dict[str, Tensor]:
    """The tensors without dimensions of 1 in those of several; parts of ranks that hold nothing are left out."""
    found = {name: one for name, one in contents.tensors.items() if one.size or name not in contents.several}
    largest: dict[object, tuple[int, ...]] = {}
    for name, tensor in found.items():
        key = contents.several.get(name, name), len(tensor.shape)
        largest[key] = tuple(map(max, tensor.shape, largest.get(key, tensor.shape)))
    for name, tensor in found.items():
        sizes = largest[contents.several.get(name, name), len(tensor.shape)]
        shape = tuple(size for size, most in zip(tensor.shape, sizes) if most != 1)
        if 1 < len(tensor.shape) != len(shape) and "scale" not in name:
            found[name] = Part(tensor, shape or (1,))
    return found


def _places(name: str) -> Iterator[tuple[object, ...]]:
    """The name without each of its numbers: what names have in common that differ in that number."""
    words, numbers = parted(name)
    yield from ((words, numbers[:place], numbers[place + 1 :]) for place in range(len(numbers)))


def _stands_for(name: str, virtual: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    names = virtual.get(name, ())
    return names if len(names) > 1 else (name,)


def _longer(name: str, other: str, left: Tensor, right: Tensor, how: str) -> Layout | None:
    """Two tensors of which one has more rows than the other, as a vocabulary that was padded."""
    is_vocabulary = "vocabulary" in roles(name) and "vocabulary" in roles(other)
    if not is_vocabulary or not left.size or not right.size or left.shape[1:] != right.shape[1:] or not left.shape:
        return None
    rows, longer = min(left.shape[0], right.shape[0]), max(left, right, key=lambda one: one.size)
    first, second = (Part(one, (rows, *one.shape[1:])) for one in (left, right))
    rest = Part(longer, (longer.shape[0] - rows, *longer.shape[1:]), rows * longer.width)
    return Layout((name,), (other,), first, second, match=how, rest=rest)


def _scale(tensors: dict[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Multiply numbers of 8 bits by the scale that stands beside them, which is taken from the tensors."""
    for name, tensor in list(tensors.items()):
        module = name.rpartition(".")[0]
        is_quantized = tensor.array_dtype.itemsize == 1 and tensor.dtype.name != "Bool" and len(tensor.shape) == 2
        if is_quantized and (name not in other or other[name].dtype is not tensor.dtype):
            beside = [one for one in tensors if one.rpartition(".")[0] in (module, name) and "scale" in one.lower()]
            if len(beside) == 1:
                try:
                    tensors[name] = Scaled(tensor, tensors[beside[0]])
                except ReadError:
                    continue
                del tensors[beside[0]]


def _states(contents: Contents) -> dict[str, dict[str, str]]:
    """The names of what an optimizer holds of each parameter: by name of the parameter, and kind."""
    held: dict[int, dict[str, str]] = defaultdict(dict)
    named: list[str] = []
    for name in contents.tensors:
        match = _STATE.match(name)
        if match is not None:
            held[int(match[1])][match[2]] = name
        elif _KIND.search(name):
            named.append(name)
    parameters = [one for one in contents.tensors if not _STATE.match(one) and not _KIND.search(one)]
    ends: dict[str, str | None] = {}  # None where several end so
    for parameter in parameters:
        words = parameter.split(".")
        for end in (".".join(words[place:]) for place in range(len(words))):
            ends[end] = None if end in ends else parameter
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for number, parameter in _numbered(contents, held, parameters, ends).items():
        found[parameter].update(
            {roles(f".{kind}").get("moment", kind): name for kind, name in held.get(number, {}).items()}
        )
    for name in named:
        words, kind = name.split("."), roles(name).get("moment") or _KIND.findall(name)[0]
        for size in range(len(words) - 1, 0, -1):
            parts = [".".join(words[place : place + size]) for place in range(len(words) - size + 1)]
            owner = next((ends[one] for one in parts if ends.get(one)), None)
            if owner is not None:
                found[owner][kind] = name
                break
    return found


def is_order(entry: str) -> bool:
    """Whether a value says which number an optimizer gives to a parameter, or the name of that."""
    return re.search(r"(?:^|[.])param_groups\.\d+\.param(?:s|_names)\.\d+$", entry) is not None


def _numbered(
    contents: Contents, held: Mapping[int, dict[str, str]], parameters: list[str], ends: Mapping[str, str | None]
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
    plain = [
        one for one in parameters if tensors[one].dtype.name.startswith(("Float", "BFloat")) and "running_" not in one
    ]
    plain = list({tensors[one].key or one: one for one in reversed(plain)}.values())[::-1]
    kinds = [[one for kind, one in held.get(number, {}).items() if kind != "step"] for number in numbers]
    for order in (plain, sorted(plain, key=lambda one: len(tensors[one].shape) < 2)):
        pairs = [(one, other) for one, several in zip(order, kinds) for other in several]
        if len(order) == len(numbers) and all(tensors[one].shape == tensors[other].shape for one, other in pairs):
            return dict(zip(numbers, order))
    return {}
