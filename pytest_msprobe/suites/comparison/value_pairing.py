"""Which value of an operation is which of its partner's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.operation import GRADIENTS, Operation
from pytest_msprobe.suites.comparison.mapping_files import ApiRule
from pytest_msprobe.suites.comparison.naming import canonical_parameter, tensor_order

Pair = tuple["Leaf | None", "Leaf | None"]
#: Part of a record that holds arguments, or their gradients.
_ARGUMENTS = {"forward": "input.", "backward": "output."}


class ValuePairing:
    """Pairs the values of two operations by their place in the record."""

    def __init__(
        self,
        *,
        frameworks: tuple[str, str] | None,
        rules: Mapping[str, ApiRule] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """A pairing across the two `frameworks`, of the target and of the golden dump; None where they are one.

        `rules` are API rules by name of the target API; `names` are golden names by the target's, for single values.
        """
        self._frameworks = frameworks
        self._rules = rules or {}
        self._names = names or {}

    def pairs(
        self, operation: Operation, partner: Operation, target: Sequence[Leaf], golden: Sequence[Leaf]
    ) -> Iterator[Pair]:
        """Every value of both sides once, those of the golden side that are left at the end."""
        rule = self._rules.get(operation.name)
        places = self._tensor_places(operation, partner, target, golden) if rule is None else ({}, {})
        waiting = {places[1].get(leaf.path) or self._key(operation, leaf): leaf for leaf in golden}
        by_name = {leaf.name: key for key, leaf in waiting.items()} if self._names else {}
        for leaf in target:
            named = by_name.get(self._names.get(leaf.name, ""))
            key = named or places[0].get(leaf.path) or self._golden_key(operation, leaf, rule)
            yield leaf, waiting.pop(key, None) if key is not None else None
        for leaf in waiting.values():
            yield None, leaf

    def _tensor_places(
        self, operation: Operation, partner: Operation, target: Sequence[Leaf], golden: Sequence[Leaf]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Common names of tensors among the arguments (or of their gradients) by path, where paths are no names."""
        part = _ARGUMENTS.get(operation.phase, "")
        if self._frameworks is None or operation.is_cell or not part:
            return {}, {}
        orders = [tensor_order(of.name, name) for of, name in zip((operation, partner), self._frameworks)]
        paths = [
            [leaf.path for leaf in leaves if leaf.path.startswith(part) and (leaf.is_tensor or _is_no_gradient(leaf))]
            for leaves in (target, golden)
        ]
        if len(paths[0]) != len(paths[1]) or (paths[0] == paths[1] and not any(orders)):
            return {}, {}
        left, right = (
            {path: f"tensor {order[at] if at < len(order) else at}" for at, path in enumerate(found)}
            for order, found in zip(orders, paths)
        )
        return left, right

    def _key(self, operation: Operation, leaf: Leaf) -> str:
        if self._frameworks is None:
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


def _is_no_gradient(leaf: Leaf) -> bool:
    return leaf.is_output and leaf.is_none
