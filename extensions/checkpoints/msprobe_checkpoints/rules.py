"""The rule of a conversion: which names become which, and in which layout, alike for all layers, experts and ranks.

Each pair of tensors is an instance of a rule: its names without numbers, how the numbers of one side follow from those
of the other, and how the parts are put together. What most siblings have is the rule; what is otherwise is the finding.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations, compress, repeat
from operator import itemgetter

from msprobe_checkpoints.files import Contents
from msprobe_checkpoints.layouts import TensorLayout, Way, orders
from msprobe_checkpoints.names import GATES, parted, roles

_TOKEN = re.compile(r"\d+|[^\d._/\[\]]+|[._/\[\]]")
#: The order in which layers fuse parts of these roles, and names of wholes that say another.
_ORDERS = {"attention": ("q", "k", "v", "o"), "gated": ("gate", "up", "down")}
#: Siblings that are asked for the partner of a tensor.
_MOST_SIBLINGS = 8
_UP_FIRST = re.compile(r"up_?gate|w3_?w?1")


@dataclass(frozen=True)
class RuleMismatch:
    """A tensor that needs another rule than its siblings, or that its names call something else.

    Attributes:
        kind: "numbers" (other layers, experts or ranks), "names", "order" (of parts), "layout", or "ranks" (that hold
            parts of other tensors than each other).
        layout: that of the tensor.
        names: its names on the side, or of the parts, that are not as they should be.
        expected: the names that the rule gives there.
        rule: the way that the rule gives.
    """

    kind: str
    layout: TensorLayout
    names: tuple[str, ...]
    expected: tuple[str, ...]
    rule: Way


@dataclass(frozen=True)
class _Side:
    """Names of one side without numbers, the numbers that they have in common, and those that they have not."""

    words: tuple[str, ...]
    numbers: tuple[int, ...]
    inner: tuple[tuple[int, ...], ...]

    def chunk_first(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Numbers in the order in which they count: chunks of a virtual pipeline go round its ranks."""
        is_rank = [not words.endswith("model") for words in self.words[0].split("\0")]
        return tuple(map(itemgetter(1), sorted(zip(is_rank, numbers), key=itemgetter(0))))

    def named(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """The names that it would have with other numbers in common."""
        if any(self.inner):
            return self.words
        return tuple(_filled(words, tuple(numbers)) for words in self.words)


def _side(names: tuple[str, ...]) -> _Side:
    words, numbers = zip(*map(parted, names))
    is_common = [len(set(several)) == 1 for several in zip(*numbers)]
    is_inner = [not common for common in is_common]
    inner = tuple(tuple(compress(of_name, chain(is_inner, repeat(True)))) for of_name in numbers)
    return _Side(tuple(dict.fromkeys(words)), tuple(compress(numbers[0], is_common)), inner)


def _filled(words: str, numbers: tuple[int, ...]) -> str:
    first, *rest = words.split("\0")
    return first + "".join(f"{number}{word}" for number, word in zip(numbers, rest))


@dataclass(frozen=True)
class _Rule:
    """What pairs of a family have in common: words of the golden side, way, and numbers that follow from one number."""

    words: tuple[str, ...]
    way: Way
    first: int
    numbers: tuple[int, ...]
    steps: tuple[Fraction, ...]

    def at(self, number: int) -> tuple[int, ...] | None:
        """The numbers of the golden side; None where there are none."""
        numbers = [base + step * (number - self.first) for base, step in zip(self.numbers, self.steps)]
        if any(fraction.denominator != 1 for fraction in numbers):
            return None
        return tuple(map(int, numbers))

    @property
    def oddness(self) -> tuple[bool, Fraction, int]:
        """The smallest for what conversions do most: matrices as they are, numbers as they are."""
        moved = sum(abs(number - self.first) for number in self.numbers)
        return bool(self.way.axes), abs(sum(self.steps, Fraction(-1))), moved


class Rules:
    """The rules that pairs of two checkpoints follow."""

    def __init__(self, layouts: Sequence[TensorLayout], target: Contents, golden: Contents) -> None:
        """The rules of these pairs, of two checkpoints."""
        self._layouts = [layout for layout in layouts if not layout.is_open]
        self._sides = [(_side(layout.target), _side(layout.golden)) for layout in self._layouts]
        self._contents = (target, golden)
        self._names: list[set[tuple[str, tuple[int, ...]]]] = []
        self._roles: list[set[tuple[str, str]]] = []
        for side, contents in enumerate(self._contents):
            names = {*contents.tensors, *chain.from_iterable(layout.names(side) for layout in layouts)}
            self._names.append(set(map(parted, names)))
            self._roles.append(set(chain.from_iterable(roles(name).items() for name in names)))

    def broken(self) -> list[RuleMismatch]:
        """The pairs that follow another rule than their siblings, or than their names say."""
        findings: dict[int, RuleMismatch] = {}
        for side in (0, 1):
            for index, finding in self._against_siblings(side):
                findings.setdefault(index, finding)
        rest = [index for index in range(len(self._layouts)) if index not in findings]
        return [*findings.values(), *self._by_names(rest), *self._by_ranks(), *self._by_order()]

    def _against_siblings(self, which: int) -> Iterator[tuple[int, RuleMismatch]]:
        """What is not as with siblings whose names on side `which` are alike, but for one number."""
        families: dict[object, list[tuple[int, int]]] = defaultdict(list)
        for index, sides in enumerate(self._sides):
            side, dimensions = sides[which], len(self._layouts[index].left.shape)
            for place, number in enumerate(side.numbers):
                key = side.words, side.inner, side.numbers[:place], place, side.numbers[place + 1 :], dimensions
                families[key].append((number, index))
        regular: set[int] = set()
        wrong: dict[int, RuleMismatch] = {}
        for members in map(sorted, families.values()):
            yield from self._exchanged([index for _, index in members], 1 - which)
            rule, fitting = self._rule_of(members, 1 - which)
            if rule is None:
                continue
            regular |= fitting
            for number, index in members:
                if index not in fitting and (finding := self._against(index, rule, rule.at(number), 1 - which)):
                    wrong.setdefault(index, finding)
        yield from ((index, finding) for index, finding in wrong.items() if index not in regular)

    def _exchanged(self, members: list[int], which: int) -> Iterator[tuple[int, RuleMismatch]]:
        """Members whose numbers go back on that side where those of the other side go on."""
        alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for index in members:
            alike[self._sides[index][which].words].append(index)
        for indices in alike.values():
            numbers = [self._sides[index][which].numbers for index in indices]
            for index, expected in zip(indices, sorted(numbers, key=self._sides[indices[0]][which].chunk_first)):
                layout, side = self._layouts[index], self._sides[index][which]
                if side.numbers != expected:
                    yield index, RuleMismatch("numbers", layout, layout.names(which), side.named(expected), layout.way)

    def _rule_of(self, members: list[tuple[int, int]], side: int) -> tuple[_Rule | None, set[int]]:
        """The rule that most members follow, and which; None where they have nothing in common."""
        fitting: dict[_Rule, set[int]] = {}
        for rule in self._rules_of(members, side):
            if rule not in fitting:
                fitting[rule] = {index for number, index in members if self._fits(index, rule, number, side)}
            if len(fitting[rule]) == len(members):
                break
        best = min(fitting, key=lambda rule: (-max(1, len(fitting[rule])), rule.oddness), default=None)
        return best, fitting[best] if best is not None else set()

    def _rules_of(self, members: list[tuple[int, int]], side: int) -> Iterator[_Rule]:
        """The rules that members have in common with those behind them, or would have if numbers stayed as they are."""
        for first, (low, index) in enumerate(members):
            words, numbers = self._sides[index][side].words, self._sides[index][side].numbers
            way = self._layouts[index].way
            for place, number in enumerate(numbers):
                if number == low and len(members) > 1:
                    steps = tuple(Fraction(at == place) for at in range(len(numbers)))
                    yield _Rule(words, way, low, numbers, steps)
            for high, other_index in members[first + 1 : first + 3]:
                other = self._sides[other_index][side]
                if words == other.words and high > low:
                    steps = tuple(Fraction(b - a, high - low) for a, b in zip(numbers, other.numbers))
                    if min(steps, default=0) >= 0:
                        yield _Rule(words, way, low, numbers, steps)

    def _fits(self, index: int, rule: _Rule, number: int, which: int) -> bool:
        side, way = self._sides[index][which], self._layouts[index].way
        return (side.words, way, side.numbers) == (rule.words, rule.way, rule.at(number))

    def _against(self, index: int, rule: _Rule, numbers: tuple[int, ...] | None, which: int) -> RuleMismatch | None:
        """What a pair does against a rule, if that side has what the rule would give."""
        layout, side = self._layouts[index], self._sides[index][which]
        if numbers is None:
            return None
        if not any(side.inner) and not self._names[which].issuperset((words, numbers) for words in rule.words):
            return None
        expected = _Side(rule.words, numbers, side.inner).named(numbers)
        if side.words != rule.words:
            kind = "order" if sorted(side.words) == sorted(rule.words) else "names"
        else:
            kind = "layout" if layout.way != rule.way else "numbers"
        return RuleMismatch(kind, layout, layout.names(which), expected, rule.way)

    def _by_names(self, indices: list[int]) -> Iterator[RuleMismatch]:
        """What names say without siblings."""
        others = [layout for layout in self._layouts if not _is_square(layout)]
        axes: dict[tuple[str, ...], tuple[int, ...]] = {}
        count = Counter(target.words for target, _ in self._sides)
        weights = {layout.target: layout.way for layout in self._layouts}
        for index in indices:
            layout, way = self._layouts[index], self._layouts[index].way
            parts = layout.golden if len(layout.target) < len(layout.golden) else layout.target
            expected = self._order(index)
            weight = weights.get(tuple(re.sub(r"bias$", "weight", name) for name in layout.target), way)
            if expected != parts:
                yield RuleMismatch("order", layout, parts, expected, way)
            elif len(parts) == 1 and self._is_other(layout):
                yield RuleMismatch("names", layout, layout.golden, (), way)
            elif (weight.groups, weight.heads) != (way.groups, way.heads):
                yield RuleMismatch("layout", layout, layout.golden, (), weight)
            elif _is_square(layout) and not roles(layout.golden[0]).get("vocabulary"):
                words = self._sides[index][0].words
                if words not in axes:
                    axes[words] = _axes_beside(layout, others)
                if axes[words] != way.axes and (axes[words] or count[words] == 1):
                    yield RuleMismatch("layout", layout, layout.golden, (), Way(axes[words]))

    def _by_ranks(self) -> Iterator[RuleMismatch]:
        """Parts of ranks that are not parts of the same tensors."""
        for side, contents in enumerate(self._contents):
            words_of: dict[str, set[tuple[str, ...]]] = defaultdict(set)
            for layout, sides in zip(self._layouts, self._sides):
                names, words = layout.names(side), sides[1 - side].words
                plain = contents.several.get(names[0])
                if plain is not None and "layer" not in names[0].removesuffix(plain):
                    words_of[plain].add(words)
                    is_cut = len(names) > 1 < len(words) and layout.way.groups % len(names)
                    if is_cut or len(words_of[plain]) > 1:
                        yield RuleMismatch("ranks", layout, names, (), layout.way)

    def _by_order(self) -> Iterator[RuleMismatch]:
        """Heads of queries and keys must have their rows in the same order; gates of a recurrent layer, too."""
        layers: dict[object, dict[str, tuple[object, TensorLayout]]] = defaultdict(dict)
        for layout, (_, golden) in zip(self._layouts, self._sides):
            name = layout.golden[0]
            role = roles(name).get("attention", "")
            if role in ("q", "k") and len(layout.target) == len(layout.golden) == 1:
                size = layout.left.shape[0] // layout.way.heads if layout.way.heads else 0
                layers[golden.numbers, roles(name).get("affine")][role] = size, layout
            elif GATES.search(name) or GATES.search(layout.target[0]):
                layers[name.rpartition(".")[0]][name] = layout.way.gates, layout
        for several in layers.values():
            if len({order for order, _ in several.values()}) > 1:
                layout = next(layout for order, layout in several.values() if order)
                yield RuleMismatch("layout", layout, layout.golden, (), Way())

    def _order(self, index: int) -> tuple[str, ...]:
        """The parts of a layout in the order of their numbers, or of their roles."""
        layout = self._layouts[index]
        whole, parts = (layout.target, layout.golden)[:: 1 if len(layout.target) < len(layout.golden) else -1]
        for side, names in zip(self._sides[index], (layout.target, layout.golden)):
            if len(side.words) == 1 and list(side.inner) != sorted(side.inner):
                return tuple(map(itemgetter(1), sorted(zip(side.inner, names))))
        inner = self._sides[index][layout.golden is parts].inner
        for kind, order in _ORDERS.items():
            role_of = [roles(name).get(kind, "") for name in parts]
            if len(whole) == 1 < len(parts) and all(role in order for role in role_of):
                reverse = -1 if kind == "gated" and _UP_FIRST.search(whole[0].lower()) else 1
                ranks = [reverse * order.index(role) for role in role_of]
                places = list(zip(ranks, inner, parts))
                pairs = combinations(places, 2)
                if any((a[1] == b[1] and a[0] > b[0]) or (a[0] == b[0] and a[1] > b[1]) for a, b in pairs):
                    return tuple(map(itemgetter(2), sorted(places)))
        return parts

    def _is_other(self, layout: TensorLayout) -> bool:
        """Whether the two names of a pair say that they are two things, both of which both sides have."""
        golden_roles = roles(layout.golden[0])
        for kind, role in roles(layout.target[0]).items():
            both = {(kind, role), (kind, golden_roles.get(kind, role))}
            if len(both) == 2 and both <= self._roles[0] and both <= self._roles[1]:
                return True
        name = parted(layout.target[0])
        return name in self._names[1] and name[0] != parted(layout.golden[0])[0]


def _is_square(layout: TensorLayout) -> bool:
    """Whether its shape allows another order of dimensions, too."""
    shape = layout.left.shape
    return any(tuple(map(shape.__getitem__, axes)) == shape for axes in orders(len(shape)))


def _axes_beside(layout: TensorLayout, others: Sequence[TensorLayout]) -> tuple[int, ...]:
    """The order of dimensions of the tensors that stand nearest to one by their names, and are not square."""

    def common(other: TensorLayout) -> int:
        pairs = zip(_TOKEN.findall(layout.target[0]), _TOKEN.findall(other.target[0]))
        return next((place for place, (a, b) in enumerate(pairs) if a != b), 99)

    alike = [other for other in others if len(other.left.shape) == len(layout.left.shape)]
    nearest = max(map(common, alike), default=0)
    axes = {other.way.axes for other in alike if common(other) == nearest}
    return axes.pop() if len(axes) == 1 else ()


class Siblings:
    """Finds the pairs of names that are as others, but for one word or number."""

    def __init__(self, layouts: Iterable[TensorLayout]) -> None:
        """The pairs of which one side has a single name."""
        self._pairs: dict[tuple[str, ...], list[tuple[str, tuple[str, ...], TensorLayout]]] = defaultdict(list)
        for layout in layouts:
            for names, others in ((layout.target, layout.golden), (layout.golden, layout.target)):
                words = _TOKEN.findall(names[0]) if len(names) == 1 else []
                for place, word in enumerate(words):
                    key = (*words[:place], "", *words[place + 1 :])
                    self._pairs[key].append((word, others, layout))

    def partners(self, name: str) -> Iterator[tuple[tuple[str, ...], TensorLayout]]:
        """(names that the other side should have of a tensor, the pair that says so)."""
        words = _TOKEN.findall(name)
        for place, new in enumerate(words):
            pairs = self._pairs.get((*words[:place], "", *words[place + 1 :]), [])
            for old, others, layout in pairs[:_MOST_SIBLINGS]:
                for at in range(len(_TOKEN.findall(others[0]))):
                    names = tuple(_changed(other, at, old, new) for other in others)
                    if names != others:
                        yield names, layout


def _changed(name: str, place: int, old: str, new: str) -> str:
    """A name in which a word changes as `old` changes to `new`, if it can."""
    words = _TOKEN.findall(name)
    word = words[place] if place < len(words) else ""
    if word.isdecimal() and old.isdecimal() and new.isdecimal():
        words[place] = str(int(word) + int(new) - int(old)).zfill(len(word))
    elif word == old:
        words[place] = new
    return "".join(words)
