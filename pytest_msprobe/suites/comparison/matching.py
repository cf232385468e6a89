"""Which operation of the target is which of the golden dump.

Call numbers identify no call: one call more on one side shifts all that follow. So an API whose calls agree in number
and shapes on both sides is paired call by call; every other one by aligning both sequences of operations, first with
shapes and parent Cells, then by name alone. A backward goes where its forward went.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msprobe_collector.dump_format.operation import Operation
from pytest_msprobe.suites.comparison.alignment import align
from pytest_msprobe.suites.comparison.naming import Name, Naming, bare_name
from pytest_msprobe.suites.comparison.side import Side


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
    target: Side, golden: Side, naming: Naming, *, fuzzy: bool = False, fixed: Mapping[str, str] | None = None
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
    left = tuple(operation for operation in golden.operations if operation.record not in pairs.taken)
    return Matching(pairs.partners, left, frozenset(pairs.by_bare_name))


def _all_but_backwards(side: Side) -> list[Operation]:
    return [operation for operation in side.operations if operation.phase != "backward"]


def _lone_backwards(side: Side) -> list[Operation]:
    """Backwards whose forward was not dumped."""
    forwards = {operation.call for operation in side.operations if operation.phase == "forward"}
    return [
        operation for operation in side.operations if operation.phase == "backward" and operation.call not in forwards
    ]


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

    target_side: Side
    golden_side: Side
    naming: Naming
    target: Sequence[Operation]
    golden: Sequence[Operation]

    def signature(self, side: Side, operation: Operation) -> Hashable:
        """Shapes and parent, by which calls of one API are distinguished."""
        has_parents = bool(self.target_side.parents and self.golden_side.parents) and not self.naming.is_translated
        parent = side.parents.get(operation.record) if has_parents else None
        return tuple(side.shapes(operation.record)), parent


def _match_sequences(pairs: _Pairs, sequences: _Sequences, fuzzy: bool) -> None:
    _match_by_number(pairs, sequences)
    naming = sequences.naming
    sides = sequences.target_side, sequences.golden_side

    def with_shapes(name: Name, side: Side) -> Callable[[Operation], Hashable]:
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
    groups: dict[str, list[Operation]] = {}
    for operation in operations:
        groups.setdefault(f"{name(operation)} {operation.phase}", []).append(operation)
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
    left = [
        (0, operation.record) if operation.record in pairs.partners else (1, target_token(operation))
        for operation in sequences.target
    ]
    right = [
        (0, partner_of[operation.record]) if operation.record in partner_of else (1, golden_token(operation))
        for operation in sequences.golden
    ]
    for i, j in align(left, right):
        if left[i][0]:
            pairs.add(sequences.target[i], sequences.golden[j])


def _follow_forwards(pairs: _Pairs, target: Side, golden: Side) -> None:
    """Pair each backward whose forward has a partner with the backward of that partner."""
    backwards = {operation.call: operation for operation in golden.operations if operation.phase == "backward"}
    forwards = {operation.call: operation for operation in target.operations if operation.phase == "forward"}
    for operation in target.operations:
        forward = forwards.get(operation.call) if operation.phase == "backward" else None
        partner = pairs.partners.get(forward.record) if forward is not None else None
        backward = backwards.get(partner.call) if partner is not None else None
        if backward is not None and operation.record not in pairs.partners and backward.record not in pairs.taken:
            pairs.add(operation, backward)
