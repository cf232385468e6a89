"""Layer mapping: where an operation stands in the tree of Cells, and where that is in the golden model.

Rules have the form of the existing tool: `{class of a Cell: {child, or child.child: path in the golden model}}`, with
`TopLayer` (or `Cell`) for the root; text from "(" on in a value is a comment. What no rule names is called the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from msprobe_collector.dump_format.operation import GRADIENTS, Operation
from pytest_msprobe.suites.comparison.naming import Naming, bare_name
from pytest_msprobe.suites.comparison.side import Side

Rules = Mapping[str, Mapping[str, str]]
Path = tuple[str, ...]

ROOT = "TopLayer"
_PIPELINED = "ParallelTransformer"


def layer_naming(target: Side, golden: Side, rules: Rules) -> Naming:
    """A naming by which operations at the same place of both models are the same."""
    trees = CellTree(target), CellTree(golden)

    def target_name(operation: Operation) -> str:
        path = trees[0].place(operation)
        return _name(operation, translate(trees[0].renumbered(path), trees[0].class_at, rules, original=path))

    def golden_name(operation: Operation) -> str:
        return _name(operation, trees[1].renumbered(trees[1].place(operation)))

    return Naming(target_name, golden_name, is_translated=True)


class CellTree:
    """The Cells of one dump by their paths."""

    def __init__(self, side: Side) -> None:
        self._side = side

    @cached_property
    def classes(self) -> dict[Path, str]:
        """Class of the Cell at each path."""
        found: dict[Path, str] = {}
        for operation in self._side.operations:
            if operation.is_cell and operation.phase:
                *path, name = operation.name.split(".")[1:]
                found[tuple(path)] = name
        return found

    @cached_property
    def _first_layer(self) -> dict[Path, int]:
        """The lowest number below `layers` of each pipelined transformer: a later stage does not begin at 0."""
        lowest: dict[Path, int] = {}
        for path in self.classes:
            for depth in range(len(path) - 1):
                front, number = path[:depth], path[depth + 1]
                if path[depth] == "layers" and number.isdecimal() and self.class_at(front) == _PIPELINED:
                    lowest[front] = min(int(number), lowest.get(front, int(number)))
        return lowest

    def class_at(self, path: Path) -> str:
        """Class of the Cell at `path`; the root's name for ()."""
        return self.classes.get(path, "") if path else ROOT

    def place(self, operation: Operation) -> Path:
        """Path of a Cell, or of the Cell that an API call ran in; () at the top."""
        if operation.is_cell:
            return tuple(operation.name.split(".")[1:-1])
        parent = self._side.parents.get(operation.record)
        return tuple(Operation.of(parent, 0).name.split(".")[1:-1]) if parent else ()

    def renumbered(self, path: Path) -> Path:
        """`path` with the layers of a pipeline stage counted from 0."""
        parts = list(path)
        for depth in range(len(path) - 1):
            lowest = self._first_layer.get(path[:depth])
            if lowest and path[depth] == "layers" and path[depth + 1].isdecimal():
                parts[depth + 1] = str(int(path[depth + 1]) - lowest)
        return tuple(parts)


def translate(path: Path, class_at: object, rules: Rules, *, original: Path | None = None) -> Path:
    """`path` in the words of the golden model.

    At each Cell the rules of its class apply, the longest left side first; one may take several levels at once and give
    several, or none. `original` is the path by which `class_at` knows the Cells, where that differs from `path`.
    """
    assert callable(class_at)
    known = path if original is None else original
    translated: list[str] = []
    depth = 0
    while depth < len(path):
        own = _rules_of(class_at(known[:depth]), rules)
        for length in range(len(path) - depth, 0, -1):
            replacement = own.get(".".join(path[depth : depth + length]))
            if replacement is not None:
                translated += [part for part in replacement.partition("(")[0].strip().split(".") if part]
                depth += length
                break
        else:
            translated.append(path[depth])
            depth += 1
    return tuple(translated)


def _rules_of(class_name: str, rules: Rules) -> Mapping[str, str]:
    if class_name == ROOT:
        return {**rules.get("Cell", {}), **rules.get(ROOT, {})}
    return rules.get(class_name, {})


def _name(operation: Operation, path: Path) -> str:
    place = ".".join(path)
    if operation.is_cell:
        return f"{place}:{GRADIENTS}" if operation.phase == GRADIENTS else f"{place}:"
    return f"{place}:{bare_name(operation)}"
