"""Which recorded values are memory not written yet: what is known of APIs, and the user's own YAML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format.text import shortened
from msprobe_collector.dump_format.yaml_files import YamlFileError, read_yaml
from pytest_msprobe.apis.unwritten import UnwrittenMemory, unwritten_memory

_KEYS = ("apis", "frameworks", "inputs", "outputs")
_ANY_FRAMEWORK = ""


class RuleError(Exception):
    """A rule file that is not what it should be: one line with file, entry and key."""


class BufferRules:
    """What is known of all APIs (`apis.unwritten`), and what a user's file says instead."""

    def __init__(self, own: Mapping[tuple[str, str], UnwrittenMemory]) -> None:
        """`own` are the user's rules by framework and API in lower case."""
        self._own = own

    def of(self, api: str, framework: str) -> UnwrittenMemory:
        """Which values of an API called `Mint.empty` mean nothing in a dump of `framework`."""
        name = api.lower()
        own = self._own.get((framework, name)) or self._own.get((_ANY_FRAMEWORK, name))
        return own or unwritten_memory(api, framework, "overwritten")


def read_rules(own: Path | None) -> BufferRules:
    """The built-in rules, and those in the YAML file `own`, which replace built-in ones for the same API.

    Raises:
        RuleError: the file cannot be read or has another form.
    """
    return BufferRules({} if own is None else _read(own))


def _read(path: Path) -> dict[tuple[str, str], UnwrittenMemory]:
    try:
        content = read_yaml(path)
    except YamlFileError as error:
        raise RuleError(f"{path}: {error}") from None
    if not isinstance(content, list):
        raise RuleError(f"{path}: expected a list of entries with {', '.join(_KEYS)}, found {type(content).__name__}")
    rules: dict[tuple[str, str], UnwrittenMemory] = {}
    for number, entry in enumerate(content, start=1):
        place = f"{path}: entry {number}"
        _check(entry, place)
        rule = UnwrittenMemory(_steps(entry, "outputs"), _steps(entry, "inputs"))
        frameworks = entry.get("frameworks", [_ANY_FRAMEWORK])
        rules.update({(framework, api.lower()): rule for api in entry["apis"] for framework in frameworks})
    return rules


def _check(entry: Any, place: str) -> None:
    if not isinstance(entry, dict):
        raise RuleError(f"{place}: expected the keys {', '.join(_KEYS)}, found {shortened(entry)}")
    for key, value in entry.items():
        if key not in _KEYS:
            raise RuleError(f"{place}: unknown key {shortened(key)}; known are {', '.join(_KEYS)}")
        wanted = (str,) if key in ("apis", "frameworks") else (str, int)
        if not isinstance(value, list) or not all(isinstance(item, wanted) for item in value):
            words = "names" if wanted == (str,) else "positions and names of keywords"
            raise RuleError(f"{place}: key {shortened(key)}: expected a list of {words}, found {shortened(value)}")
    if not entry.get("apis") or not (entry.get("inputs") or entry.get("outputs")):
        raise RuleError(f"{place}: needs apis, and inputs or outputs")


def _steps(entry: dict[str, Sequence[str | int]], key: str) -> frozenset[str]:
    found: Iterable[str | int] = entry.get(key, ())
    return frozenset(map(str, found))
