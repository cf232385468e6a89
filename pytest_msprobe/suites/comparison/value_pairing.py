"""Which value of an operation is which of its partner's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.operation import GRADIENTS, Operation
from pytest_msprobe.suites.comparison.mapping_files import ApiRule
from pytest_msprobe.suites.comparison.naming import canonical_parameter

Pair = tuple[Leaf | None, Leaf | None]


class ValuePairing:
    """Pairs the values of two operations by their place in the record."""

    def __init__(
        self, *, is_translated: bool, rules: Mapping[str, ApiRule] | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        """A pairing that reads names of parameters across frameworks when `is_translated`.

        `rules` are API rules by name of the target API; `names` are golden names by the target's, for single values.
        """
        self._is_translated = is_translated
        self._rules = rules or {}
        self._names = names or {}

    def pairs(self, operation: Operation, target: Sequence[Leaf], golden: Sequence[Leaf]) -> Iterator[Pair]:
        """Every value of both sides once, those of the golden side that are left at the end."""
        rule = self._rules.get(operation.name)
        waiting = {self._key(operation, leaf): leaf for leaf in golden}
        by_name = {leaf.name: self._key(operation, leaf) for leaf in golden} if self._names else {}
        for leaf in target:
            named = by_name.get(self._names.get(leaf.name, ""))
            key = named if named is not None else self._golden_key(operation, leaf, rule)
            yield leaf, waiting.pop(key, None) if key is not None else None
        for leaf in waiting.values():
            yield None, leaf

    def _key(self, operation: Operation, leaf: Leaf) -> str:
        if not self._is_translated:
            return leaf.path
        front, dot, last = leaf.path.rpartition(".")
        if leaf.path.startswith("parameters.") or operation.phase == GRADIENTS:
            return f"{front}{dot}{canonical_parameter(last)}"
        return leaf.path

    def _golden_key(self, operation: Operation, leaf: Leaf, rule: ApiRule | None) -> str | None:
        """Where the partner stands; None for a value that an API rule leaves out."""
        part, _, rest = leaf.path.partition(".")
        positions = rule.positions.get(part) if rule is not None else None
        if positions is None:
            return self._key(operation, leaf)
        index, dot, deeper = rest.partition(".")
        if not index.isdecimal() or int(index) not in positions:
            return None
        return f"{part}.{positions[int(index)]}{dot}{deeper}"
