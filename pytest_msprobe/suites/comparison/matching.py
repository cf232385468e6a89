"""Which operation of the target is which of the golden dump.

Call numbers identify no call: one call more on one side shifts all that follow. So an API whose calls agree in number
and shapes on both sides is paired call by call; every other one by aligning both sequences of operations, first with
shapes and parent Cells, then by name alone. A backward goes where its forward went.

Sequences are aligned as in Myers, "An O(ND) difference algorithm and its variations" (1986): fast
when few elements differ, and never crossing.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import plain_name
from pytest_msprobe.suites.comparison.sides import ComparedDump

#: From this many additions and omissions on, a shortest script is not worth its time; see `align`.
_MOST_DIFFERENCES = 2000


def align(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Index pairs of equal elements, ascending on both sides: a longest common subsequence.

    Where more than 2,000 elements differ, a common subsequence that need not be the longest.
    """
    mine, theirs = _shared(target, golden), _shared(golden, target)
    tokens = [token for _, token in mine]
    pairs = _align(tokens, [token for _, token in theirs])
    return [(mine[i][0], theirs[j][0]) for i, j in pairs]


def _shared(tokens: Sequence[Hashable], others: Sequence[Hashable]) -> list[tuple[int, Hashable]]:
    """(index, token) of those that stand on the other side, too."""
    among = set(others)
    return [pair for pair in enumerate(tokens) if pair[1] in among]


def _align(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]]:
    start = 0
    shortest = min(len(target), len(golden))
    while start < shortest and target[start] == golden[start]:
        start += 1
    end = 0
    while end < shortest - start and target[-1 - end] == golden[-1 - end]:
        end += 1
    target_middle, golden_middle = target[start : len(target) - end], golden[start : len(golden) - end]
    middle = _shortest_script(target_middle, golden_middle)
    if middle is None:
        middle = _nearest_next(target_middle, golden_middle)
    pairs = [(index, index) for index in range(start)]
    pairs += [(i + start, j + start) for i, j in middle]
    return pairs + [(len(target) - k, len(golden) - k) for k in range(end, 0, -1)]


def _shortest_script(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]] | None:
    """The matches of a shortest edit script, or None when it is too long."""
    most = len(target) + len(golden)
    reach = array("q", [0]) * (2 * min(most, _MOST_DIFFERENCES) + 3)
    offset = len(reach) // 2
    history: list[array[int]] = []
    for cost in range(min(most, _MOST_DIFFERENCES) + 1):
        history.append(reach[offset - cost - 1 : offset + cost + 2])
        for diagonal in range(-cost, cost + 1, 2):
            below, above = reach[offset + diagonal + 1], reach[offset + diagonal - 1]
            x = below if diagonal == -cost or (diagonal != cost and above < below) else above + 1
            y = x - diagonal
            while x < len(target) and y < len(golden) and target[x] == golden[y]:
                x += 1
                y += 1
            reach[offset + diagonal] = x
            if x >= len(target) and y >= len(golden):
                return _matches(history, len(target), len(golden))
    return None


def _matches(history: list[array[int]], x: int, y: int) -> list[tuple[int, int]]:
    matches = []
    for cost in range(len(history) - 1, -1, -1):
        reach = history[cost]  # diagonals -cost-1 .. cost+1, as they were before this step
        diagonal = x - y
        below, above = reach[diagonal + cost + 2], reach[diagonal + cost]
        came_down = diagonal == -cost or (diagonal != cost and above < below)
        start = below if came_down else above + 1
        before = start if cost else 0
        while x > max(before, 0) and y > 0 and x > before:
            x -= 1
            y -= 1
            matches.append((x, y))
        if cost:
            x, y = (below, below - diagonal - 1) if came_down else (above, above - diagonal + 1)
    return matches[::-1]


def _nearest_next(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Greedy: each element takes its first equal behind the match before, unless that would skip over most of them."""
    places = defaultdict[Hashable, list[int]](list)
    for index in range(len(golden) - 1, -1, -1):
        places[golden[index]].append(index)
    pairs, last = [], -1
    for index, token in enumerate(target):
        waiting = places.get(token, [])
        while waiting and waiting[-1] <= last:
            waiting.pop()
        if waiting and waiting[-1] - last <= 1 + 4 * (len(golden) - last) // max(1, len(target) - index):
            last = waiting.pop()
            pairs.append((index, last))
    return pairs


Name = Callable[[Operation], str]


@dataclass(frozen=True, slots=True)
class Naming:
    """How operations are named for matching.

    Attributes:
        target, golden: name of an operation of that side; equal names mean the same.
        is_translated: whether names cross frameworks, so that parameters do too.
    """

    target: Name
    golden: Name
    is_translated: bool = False


def ending_of(operation: Operation) -> str:
    """Return what follows the name of the gradients of parameters; "" for other records."""
    return f":{GRADIENTS}" if operation.phase == GRADIENTS else ""


def own_name(operation: Operation) -> str:
    """The name in the dump, without call number."""
    return f"{operation.name}{ending_of(operation)}"


def bare_name(operation: Operation) -> str:
    """The callable's own name in the one spelling for both frameworks; for a Cell, its path without its class."""
    if operation.is_cell:
        return f"Cell.{operation.name.partition('.')[2].rpartition('.')[0]}{ending_of(operation)}"
    return canonical_operation(operation.bare, operation.name.partition(".")[0])


SAME_NAMES = Naming(own_name, own_name)
ACROSS_FRAMEWORKS = Naming(bare_name, bare_name, is_translated=True)


@cache
def canonical_operation(bare: str, api_type: str = "") -> str:
    """`linear` for `Dense`, `dense` and `linear`: one word for an API in both frameworks.

    `api_type` is that of its record names, where the word depends on it.
    """
    fact = facts("operation_names").find(api_type, bare)
    return fact.text if fact else plain_name(bare)


@cache
def tensor_order(name: str, framework: str) -> tuple[int, ...]:
    """Where PyTorch has the tensors among the arguments of the operation `name` (`Functional.gather`), in its order.

    () where the order is PyTorch's, as far as is known.
    """
    fact = facts("tensor_order").find(name.partition(".")[0], name.rpartition(".")[2], framework)
    return tuple(int(place) for place in fact.text.split()) if fact else ()


@cache
def canonical_parameter(name: str) -> str:
    """`weight` for `gamma`: one word for a parameter in both frameworks."""
    fact = facts("parameter_names").word(name)
    return fact.text if fact else plain_name(name)


@dataclass(frozen=True, slots=True)
class Matching:
    """The outcome.

    Attributes:
        partners: golden operation by target record; records without one are not in it.
        golden_only: golden operations that no target operation matches, in their order.
        by_bare_name: target records that only the fuzzy rule could match.
    """

    partners: Mapping[str, Operation]
    golden_only: tuple[Operation, ...]
    by_bare_name: frozenset[str] = frozenset()


def match(
    target: ComparedDump,
    golden: ComparedDump,
    naming: Naming,
    *,
    fuzzy: bool = False,
    fixed: Mapping[str, str] | None = None,
) -> Matching:
    """The pairs of two dumps.

    `fuzzy` lets what is left match by the bare API name; `fixed` are golden records by target record that are given.
    """
    pairs = _Pairs()
    golden_operations = {operation.record: operation for operation in golden.operations}
    for operation in target.operations:
        if fixed and operation.record in fixed:
            pairs.add(operation, golden_operations[fixed[operation.record]])
    for choose in (_all_but_backwards, _lone_backwards):
        _match_sequences(pairs, _Sequences(target, golden, naming, choose(target), choose(golden)), fuzzy)
        _follow_forwards(pairs, target, golden)
    golden_only = tuple(operation for operation in golden.operations if operation.record not in pairs.taken)
    return Matching(pairs.partners, golden_only, frozenset(pairs.by_bare_name))


def _all_but_backwards(side: ComparedDump) -> list[Operation]:
    return [operation for operation in side.operations if operation.phase != "backward"]


def _lone_backwards(side: ComparedDump) -> list[Operation]:
    """Backwards whose forward was not dumped."""
    forwards = _by_call(side, "forward")
    return [operation for call, operation in _by_call(side, "backward").items() if call not in forwards]


def _by_call(side: ComparedDump, phase: str) -> dict[str, Operation]:
    """The records of one phase by their calls."""
    return {operation.call: operation for operation in side.operations if operation.phase == phase}


class _Pairs:
    """Pairs as they are found."""

    def __init__(self) -> None:
        self.partners: dict[str, Operation] = {}
        self.taken: set[str] = set()
        self.by_bare_name: set[str] = set()

    def add(self, target: Operation, golden: Operation) -> None:
        self.partners[target.record] = golden
        self.taken.add(golden.record)


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Both sequences of operations, and what they are called."""

    target_side: ComparedDump
    golden_side: ComparedDump
    naming: Naming
    target: Sequence[Operation]
    golden: Sequence[Operation]

    def signature(self, side: ComparedDump, operation: Operation) -> Hashable:
        """Shapes and parent, by which calls of one API are distinguished."""
        has_parents = bool(self.target_side.parents and self.golden_side.parents) and not self.naming.is_translated
        parent = side.parents.get(operation.record) if has_parents else None
        return tuple(side.shapes(operation.record)), parent


def _match_sequences(pairs: _Pairs, sequences: _Sequences, fuzzy: bool) -> None:
    _match_by_number(pairs, sequences)
    naming = sequences.naming
    sides = sequences.target_side, sequences.golden_side

    def with_shapes(name: Name, side: ComparedDump) -> Callable[[Operation], Hashable]:
        return lambda operation: (name(operation), sequences.signature(side, operation))

    tokens = with_shapes(naming.target, sides[0]), with_shapes(naming.golden, sides[1])
    _match_by_alignment(pairs, sequences, *tokens)
    _match_by_alignment(pairs, sequences, naming.target, naming.golden)
    if fuzzy:
        before = set(pairs.partners)
        _match_by_alignment(pairs, sequences, bare_name, bare_name)
        pairs.by_bare_name |= pairs.partners.keys() - before


def _match_by_number(pairs: _Pairs, sequences: _Sequences) -> None:
    """Pair the APIs that were called equally often and with equal shapes on both sides."""
    taken = pairs.taken
    golden_groups = _groups((call for call in sequences.golden if call.record not in taken), sequences.naming.golden)
    free = (call for call in sequences.target if call.record not in pairs.partners)
    for name, calls in _groups(free, sequences.naming.target).items():
        others = golden_groups.get(name, [])
        if len(calls) == len(others) and all(
            sequences.signature(sequences.target_side, call) == sequences.signature(sequences.golden_side, other)
            for call, other in zip(calls, others)
        ):
            for call, other in zip(calls, others):
                pairs.add(call, other)


def _groups(operations: Iterable[Operation], name: Name) -> dict[str, list[Operation]]:
    groups = defaultdict[str, list[Operation]](list)
    for operation in operations:
        groups[f"{name(operation)} {operation.phase}"].append(operation)
    for calls in groups.values():
        if len({call.name for call in calls}) == 1:
            calls.sort(key=lambda call: int(call.number or 0))
    return groups


def _match_by_alignment(
    pairs: _Pairs,
    sequences: _Sequences,
    target_token: Callable[[Operation], Hashable],
    golden_token: Callable[[Operation], Hashable],
) -> None:
    """Pair what stands between the same pairs on both sides and has equal tokens."""
    if all(operation.record in pairs.partners for operation in sequences.target):
        return
    partner_of = {golden.record: record for record, golden in pairs.partners.items()}
    mine = _tokens(sequences.target, target_token, dict(zip(pairs.partners, pairs.partners)))
    theirs = _tokens(sequences.golden, golden_token, partner_of)
    for i, j in align(mine, theirs):
        if mine[i][0]:
            pairs.add(sequences.target[i], sequences.golden[j])


def _tokens(
    operations: Sequence[Operation], token: Callable[[Operation], Hashable], paired: Mapping[str, str]
) -> list[tuple[bool, Hashable]]:
    """(whether it is without a partner, what it is matched by) of each operation."""
    tokens: list[tuple[bool, Hashable]] = []
    for operation in operations:
        name = paired.get(operation.record)
        tokens.append((False, name) if name is not None else (True, token(operation)))
    return tokens


def _follow_forwards(pairs: _Pairs, target: ComparedDump, golden: ComparedDump) -> None:
    """Pair each backward whose forward has a partner with the backward of that partner."""
    backwards, forwards = _by_call(golden, "backward"), _by_call(target, "forward")
    for call, operation in _by_call(target, "backward").items():
        partner = pairs.partners.get(forwards[call].record) if call in forwards else None
        backward = backwards.get(partner.call) if partner is not None else None
        if backward is not None and operation.record not in pairs.partners and backward.record not in pairs.taken:
            pairs.add(operation, backward)
