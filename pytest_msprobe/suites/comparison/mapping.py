"""Which value of an operation is which of its partner's.

- Mapping files in the formats of the existing tool, and what they make of names.
- Layer mapping: where an operation stands in the tree of Cells, and where that is in the golden
  model.

Rules of layers have the form of the existing tool: `{class of a Cell: {child, or child.child: path
in the golden model}}`, with `TopLayer` (or `Cell`) for the root; text from "(" on in a value is a
comment. What no rule names is called the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from msprobe_collector.dump_format.values import abbreviated
from msprobe_collector.dump_format.yaml_files import YamlFileError, read_yaml
from pytest_msprobe.suites.comparison.matching import (
    ACROSS_FRAMEWORKS,
    SAME_NAMES,
    Naming,
    bare_name,
    canonical_operation,
    canonical_parameter,
    ending_of,
    tensor_order,
)
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.sides import ComparedDump

#: Parts of an operation whose values an API mapping pairs by position: our path, and the words for it in files, of
#: which the documents of the existing tool have the first and its code the second.
_PARTS = {"input": ("args",), "output": ("outputs", "output"), "parameters": ("parameters",), "": ("parameters_grad",)}
_API_KEYS = (
    "ms_api",
    "pt_api",
    *(f"{side}_{word}" for words in _PARTS.values() for word in words for side in ("ms", "pt")),
)


class MappingError(ValueError):
    """One line on what is wrong with a mapping file: file, key, what was found."""


@dataclass(frozen=True, slots=True)
class ApiRule:
    """One entry of an API mapping.

    Attributes:
        golden: name of the golden API, as in its dump: `Torch.conv2d`.
        positions: golden index by target index, for each part that the entry lists (`input`, `output`, ...).
    """

    golden: str
    positions: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


def read_names(path: Path) -> dict[str, str]:
    """`{target: golden}` of a mapping of Cells, by path and class, or of values. Raises MappingError."""
    return _texts(_read(path), path)


def read_layer_mapping(path: Path) -> dict[str, dict[str, str]]:
    """`{class of a Cell: {child: golden path}}` of a layer mapping.

    Raises:
        MappingError: the file cannot be read or has another form.
    """
    content = _read(path)
    if not isinstance(content, dict):
        raise MappingError(f"{path}: expected classes of Cells and their children, found {type(content).__name__}")
    return {str(name): _texts(children, path, str(name)) for name, children in content.items()}


def read_api_mapping(path: Path) -> dict[str, ApiRule]:
    """Rules by the name of the target API (`Functional.conv2d`), from a list or an object of entries.

    Raises:
        MappingError: an entry has an unknown key, lacks a name, or lists of different lengths.
    """
    content = _read(path)
    if isinstance(content, dict):
        content = [content] if "ms_api" in content else list(content.values())
    if not isinstance(content, list):
        raise MappingError(f"{path}: expected a list of entries with ms_api and pt_api, found {type(content).__name__}")
    return dict(_api_rule(entry, f"{path}: entry {number}") for number, entry in enumerate(content, start=1))


def cell_naming(rules: Mapping[str, str], apis: Mapping[str, ApiRule]) -> Naming:
    """A naming that takes Cells for Modules; APIs are named as `api_naming` does by the rules `apis`.

    An exact rule wins; else every left side found in a name is replaced once, in the order of the file.
    """
    of_api = api_naming(apis)

    def target(operation: Operation) -> str:
        if not operation.is_cell:
            return of_api.target(operation)
        name = operation.name.partition(".")[2]
        if name in rules:
            name = rules[name]
        else:
            for pattern, replacement in rules.items():
                name = name.replace(pattern, replacement, 1)
        return f"Cell.{name.rpartition('.')[0]}{ending_of(operation)}"

    return Naming(target, bare_name, is_translated=True)


@dataclass(frozen=True)
class Mappings:
    """Which names of the target are which of the golden dump, as mapping files and rules say.

    Attributes:
        settings: which of them are given.
        apis: rules by name of the target API.
        cells: golden path and class of a Cell by the target's.
        values: golden name of a value by the target's.
    """

    settings: ComparisonSettings
    apis: Mapping[str, ApiRule]
    cells: Mapping[str, str]
    values: Mapping[str, str]

    @classmethod
    def read(cls, settings: ComparisonSettings) -> Mappings:
        """Read the files that `settings` name. Raises MappingError."""
        apis, cells, values = settings.api_mapping, settings.cell_mapping, settings.data_mapping
        rules = read_api_mapping(apis) if isinstance(apis, Path) else {}
        cell_names = read_names(cells) if isinstance(cells, Path) else {}
        return cls(settings, rules, cell_names, read_names(values) if values else {})

    @property
    def are_given(self) -> bool:
        """Whether a mapping of names was given."""
        settings = self.settings
        return any((settings.cell_mapping, settings.api_mapping, settings.data_mapping, settings.layer_mapping))

    def naming(self, target: ComparedDump, golden: ComparedDump) -> Naming:
        """Return how operations are named.

        Raises:
            DumpError: the layer mapping needs parents, and a dump has none.
            MappingError: the layer mapping cannot be read.
        """
        settings = self.settings
        if settings.layer_mapping is not None:
            for side in (target, golden):
                if not side.parents:
                    reason = "the layer mapping needs a construct.json with parents; dump at level L0 or mix"
                    raise DumpError(reason, file=str(side.path.parent))
            return layer_naming(target, golden, read_layer_mapping(settings.layer_mapping))
        if settings.cell_mapping:
            return cell_naming(self.cells, self.apis)
        if settings.api_mapping:
            return api_naming(self.apis)
        is_one_framework = (target.framework == "pytorch") == (golden.framework == "pytorch")
        return SAME_NAMES if is_one_framework else ACROSS_FRAMEWORKS

    def fixed(self, target: ComparedDump, golden: ComparedDump) -> dict[str, str]:
        """Return the golden records by those of the target that are one, since a value of each is."""
        records: dict[str, str] = {}
        for names in self.values.items():
            record, partner = map(_record_of, names, (target, golden))
            if record is not None and partner is not None:
                records.setdefault(record, partner)
        return records

    def unused(self, target: ComparedDump, golden: ComparedDump) -> Iterator[str]:
        """Return a line on each file with entries that fit nothing in the dumps.

        A table of APIs may be of many models: it is one only where no entry fits.
        """
        settings = self.settings
        values = [name for name in self.values if _record_of(name, target) is None]
        values += [name for name in self.values.values() if _record_of(name, golden) is None]
        yield from _unused(settings.data_mapping, values, 2 * len(self.values))
        cells = "\n".join(operation.name for operation in target.operations if operation.is_cell)
        lone = [name for name in self.cells if name not in cells]
        yield from _unused(settings.cell_mapping, lone, len(self.cells))
        if self.apis.keys().isdisjoint(operation.name for operation in target.operations):
            yield from _unused(settings.api_mapping, list(self.apis), len(self.apis))


def _unused(file: object, entries: Sequence[str], total: int) -> Iterator[str]:
    if entries:
        yield f"{file}: {len(entries)} of {total} names fit nothing in the dumps, such as {abbreviated(entries[0])}"


def _record_of(value_name: str, side: ComparedDump) -> str | None:
    """The record that a full value name belongs to, or None when the dump has none."""
    name = value_name
    while name and name not in side:
        name = name.rpartition(".")[0]
    return name or None


def api_naming(rules: Mapping[str, ApiRule]) -> Naming:
    """A naming across frameworks, with the names of `rules` where they have one."""

    def target(operation: Operation) -> str:
        rule = rules.get(operation.name)
        return bare_name(operation) if rule is None else canonical_operation(rule.golden.rpartition(".")[2])

    return Naming(target, bare_name, is_translated=True)


def _api_rule(entry: Any, where: str) -> tuple[str, ApiRule]:
    if not isinstance(entry, dict):
        raise MappingError(f"{where}: expected ms_api, pt_api and lists of positions, found {abbreviated(entry)}")
    for key in entry:
        if key not in _API_KEYS:
            near = get_close_matches(str(key), _API_KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_API_KEYS)}"
            raise MappingError(f"{where}: unknown key {abbreviated(key)}; {hint}")
    for key in ("ms_api", "pt_api"):
        if not isinstance(entry.get(key), str):
            raise MappingError(
                f"{where}: key {abbreviated(key)}: expected the name of an API, found {abbreviated(entry.get(key))}"
            )
    positions: dict[str, Mapping[int, int]] = {}
    for part, words in _PARTS.items():
        for word in words:
            target: Any = entry.get(f"ms_{word}")
            golden: Any = entry.get(f"pt_{word}")
            if part in positions or (target is None and golden is None):
                continue
            if not _is_positions(target) or not _is_positions(golden) or len(target) != len(golden):
                raise MappingError(
                    f"{where}: ms_{word} and pt_{word} must list equally many positions, "
                    f"found {abbreviated(target)} and {abbreviated(golden)}"
                )
            positions[part] = dict(zip(target, golden))
    return entry["ms_api"], ApiRule(entry["pt_api"], positions)


def _is_positions(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _texts(content: Any, path: Path, key: str = "") -> dict[str, str]:
    where = f"{path}: key {abbreviated(key)}" if key else f"{path}"
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise MappingError(f"{where}: expected names and names, found {type(content).__name__}")
    for name, text in content.items():
        if not isinstance(text, str):
            raise MappingError(f"{where}: key {abbreviated(name)}: expected a name, found {abbreviated(text)}")
    return {str(name): text for name, text in content.items()}


def _read(path: Path) -> Any:
    try:
        return read_yaml(path)
    except YamlFileError as error:
        raise MappingError(f"{path}: {error}") from None


Pair = tuple["Leaf | None", "Leaf | None"]
#: Part of a record that holds arguments, or their gradients.
_ARGUMENTS = {"forward": "input.", "backward": "output."}


class ValuePairing:
    """Pairs the values of two operations by their place in the record."""

    def __init__(
        self, frameworks: tuple[str, str] | None, rules: Mapping[str, ApiRule], names: Mapping[str, str]
    ) -> None:
        """A pairing across the two `frameworks`, of the target and of the golden dump; None where they are one.

        `rules` are API rules by name of the target API; `names` are golden names by the target's, for single values.
        """
        self._frameworks = frameworks
        self._rules = rules
        self._names = names

    def pairs(
        self, operation: Operation, partner: Operation, target: Sequence[Leaf], golden: Sequence[Leaf]
    ) -> Iterator[Pair]:
        """Every value of both sides once, those of the golden side that are left at the end."""
        rule = self._rules.get(operation.name)
        places = self._tensor_places(operation, partner, target, golden) if rule is None else ({}, {})
        waiting = {places[1].get(leaf.path) or self._key(operation, leaf): leaf for leaf in golden}
        by_name = {leaf.name: key for key, leaf in waiting.items()}
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
        mine, theirs = _tensor_paths(target, part), _tensor_paths(golden, part)
        order = tensor_order(operation.name, self._frameworks[0])
        other_order = tensor_order(partner.name, self._frameworks[1])
        if len(mine) != len(theirs) or (mine == theirs and not (order or other_order)):
            return {}, {}
        return _numbered(mine, order), _numbered(theirs, other_order)

    def _key(self, operation: Operation, leaf: Leaf) -> str:
        is_parameter = leaf.path.startswith("parameters.") or operation.phase == GRADIENTS
        if self._frameworks is None or not is_parameter:
            return leaf.path
        front, dot, last = leaf.path.rpartition(".")
        return f"{front}{dot}{canonical_parameter(last)}"

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


def _tensor_paths(leaves: Sequence[Leaf], part: str) -> list[str]:
    """Places of the tensors in a part of a record, and of gradients that are None."""
    parts = (leaf for leaf in leaves if leaf.path.startswith(part))
    return [leaf.path for leaf in parts if leaf.is_tensor or (leaf.is_output and leaf.is_none)]


def _numbered(paths: Sequence[str], order: Sequence[int]) -> dict[str, str]:
    """Names of tensors by their paths, with numbers in the `order` of PyTorch as far as that goes."""
    numbers = (*order, *range(len(order), len(paths)))
    return {path: f"tensor {number}" for path, number in zip(paths, numbers)}


Rules = Mapping[str, Mapping[str, str]]
LayerPath = tuple[str, ...]

ROOT = "TopLayer"
_PIPELINED = "ParallelTransformer"


def layer_naming(target: ComparedDump, golden: ComparedDump, rules: Rules) -> Naming:
    """A naming by which operations at the same place of both models are the same."""
    trees = CellTree(target), CellTree(golden)

    def target_name(operation: Operation) -> str:
        path = trees[0].place(operation)
        return _name(operation, translate(trees[0].renumbered(path), path, trees[0].class_at, rules))

    def golden_name(operation: Operation) -> str:
        return _name(operation, trees[1].renumbered(trees[1].place(operation)))

    return Naming(target_name, golden_name, is_translated=True)


class CellTree:
    """The Cells of one dump by their paths."""

    def __init__(self, side: ComparedDump) -> None:
        self._side = side

    @cached_property
    def classes(self) -> dict[LayerPath, str]:
        """Class of the Cell at each path."""
        classes: dict[LayerPath, str] = {}
        for operation in self._side.operations:
            if operation.is_cell and operation.phase:
                *path, name = operation.name.split(".")[1:]
                classes[tuple(path)] = name
        return classes

    @cached_property
    def _first_layer(self) -> dict[LayerPath, int]:
        """The lowest number below `layers` of each pipelined transformer: a later stage does not begin at 0."""
        lowest: dict[LayerPath, int] = {}
        for path in self.classes:
            for depth in range(len(path) - 1):
                front, number = path[:depth], path[depth + 1]
                if path[depth] == "layers" and number.isdecimal() and self.class_at(front) == _PIPELINED:
                    lowest[front] = min(int(number), lowest.get(front, int(number)))
        return lowest

    def class_at(self, path: LayerPath) -> str:
        """Class of the Cell at `path`; the root's name for ()."""
        return self.classes.get(path, "") if path else ROOT

    def place(self, operation: Operation) -> LayerPath:
        """Path of a Cell, or of the Cell that an API call ran in; () at the top."""
        if operation.is_cell:
            return tuple(operation.name.split(".")[1:-1])
        parent = self._side.parents.get(operation.record)
        return tuple(Operation.of(parent, 0).name.split(".")[1:-1]) if parent else ()

    def renumbered(self, path: LayerPath) -> LayerPath:
        """`path` with the layers of a pipeline stage counted from 0."""
        parts = list(path)
        for depth in range(len(path) - 1):
            lowest = self._first_layer.get(path[:depth])
            if lowest and path[depth] == "layers" and path[depth + 1].isdecimal():
                parts[depth + 1] = str(int(path[depth + 1]) - lowest)
        return tuple(parts)


def translate(path: LayerPath, original: LayerPath, class_at: Callable[[LayerPath], str], rules: Rules) -> LayerPath:
    """`path` in the words of the golden model.

    At each Cell the rules of its class apply, the longest left side first; one may take several levels at once and give
    several, or none. `original` is the path by which `class_at` knows the Cells.
    """
    translated: list[str] = []
    depth = 0
    while depth < len(path):
        class_name = class_at(original[:depth])
        of_class = dict(rules.get("Cell", {})) if class_name == ROOT else {}
        of_class |= rules.get(class_name, {})
        for length in range(len(path) - depth, 0, -1):
            replacement = of_class.get(".".join(path[depth : depth + length]))
            if replacement is not None:
                translated += [part for part in replacement.partition("(")[0].strip().split(".") if part]
                depth += length
                break
        else:
            translated.append(path[depth])
            depth += 1
    return tuple(translated)


def _name(operation: Operation, path: LayerPath) -> str:
    place = ".".join(path)
    if operation.is_cell:
        return f"{place}{ending_of(operation) or ':'}"
    return f"{place}:{bare_name(operation)}"
