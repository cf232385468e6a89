"""Mapping files in the formats of the existing tool, and what they make of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format.operation import GRADIENTS, Operation
from msprobe_collector.dump_format.text import shortened
from msprobe_collector.dump_format.yaml_files import YamlFileError, read_yaml
from pytest_msprobe.suites.comparison.naming import Naming, bare_name, canonical_operation

#: Parts of an operation whose values an API mapping pairs by position: our path, and the words for it in files, of
#: which the documents of the existing tool have the first and its code the second.
_PARTS = {
    "input": ("args",),
    "output": ("outputs", "output"),
    "parameters": ("parameters",),
    "": ("parameters_grad",),
}
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


def read_cell_mapping(path: Path) -> dict[str, str]:
    """`{target path and class: golden path and class}` of a cell mapping. Raises MappingError."""
    return _texts(_read(path), path)


def read_data_mapping(path: Path) -> dict[str, str]:
    """`{target value: golden value}` of a data mapping. Raises MappingError."""
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
    rules = [_api_rule(entry, f"{path}: entry {number}") for number, entry in enumerate(content, start=1)]
    return dict(rules)


def cell_naming(rules: Mapping[str, str]) -> Naming:
    """A naming that takes Cells for Modules; APIs are named across frameworks.

    An exact rule wins; else every left side found in a name is replaced once, in the order of the file.
    """

    def target(operation: Operation) -> str:
        if not operation.is_cell:
            return bare_name(operation)
        name = operation.name.partition(".")[2]
        if name in rules:
            name = rules[name]
        else:
            for left, right in rules.items():
                name = name.replace(left, right, 1)
        ending = f":{GRADIENTS}" if operation.phase == GRADIENTS else ""
        return f"Cell.{name.rpartition('.')[0]}{ending}"

    return Naming(target, bare_name, is_translated=True)


def api_naming(rules: Mapping[str, ApiRule]) -> Naming:
    """A naming across frameworks, with the names of `rules` where they have one."""

    def target(operation: Operation) -> str:
        rule = rules.get(operation.name)
        return bare_name(operation) if rule is None else canonical_operation(rule.golden.rpartition(".")[2])

    return Naming(target, bare_name, is_translated=True)


def _api_rule(entry: Any, where: str) -> tuple[str, ApiRule]:
    if not isinstance(entry, dict):
        raise MappingError(f"{where}: expected ms_api, pt_api and lists of positions, found {shortened(entry)}")
    for key in entry:
        if key not in _API_KEYS:
            near = get_close_matches(str(key), _API_KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_API_KEYS)}"
            raise MappingError(f"{where}: unknown key {shortened(key)}; {hint}")
    for key in ("ms_api", "pt_api"):
        if not isinstance(entry.get(key), str):
            raise MappingError(
                f"{where}: key {shortened(key)}: expected the name of an API, found {shortened(entry.get(key))}"
            )
    positions = {part: _positions(entry, words, where) for part, words in _PARTS.items()}
    listed = {part: found for part, found in positions.items() if found is not None}
    return entry["ms_api"], ApiRule(entry["pt_api"], listed)


def _positions(entry: dict[str, Any], words: tuple[str, ...], where: str) -> dict[int, int] | None:
    for word in words:
        left: Any = entry.get(f"ms_{word}")
        right: Any = entry.get(f"pt_{word}")
        if left is None and right is None:
            continue
        if not _is_positions(left) or not _is_positions(right) or len(left) != len(right):
            raise MappingError(
                f"{where}: ms_{word} and pt_{word} must list equally many positions, "
                f"found {shortened(left)} and {shortened(right)}"
            )
        return dict(zip(left, right))
    return None


def _is_positions(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _texts(content: Any, path: Path, key: str = "") -> dict[str, str]:
    where = f"{path}: key {shortened(key)}" if key else f"{path}"
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise MappingError(f"{where}: expected names and names, found {type(content).__name__}")
    for left, right in content.items():
        if not isinstance(right, str):
            raise MappingError(f"{where}: key {shortened(left)}: expected a name, found {shortened(right)}")
    return {str(left): right for left, right in content.items()}


def _read(path: Path) -> Any:
    try:
        return read_yaml(path)
    except YamlFileError as error:
        raise MappingError(f"{path}: {error}") from None
