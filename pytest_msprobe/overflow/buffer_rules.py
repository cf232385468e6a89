"""Which recorded values are memory not written yet: `uninitialised_buffers.yaml` and the user's own file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_BUILT_IN = Path(__file__).with_name("uninitialised_buffers.yaml")
_KEYS = ("apis", "frameworks", "inputs", "outputs")
_ANY_FRAMEWORK = ""


class RuleError(Exception):
    """A rule file that is not what it should be: one sentence with file, entry and key."""


@dataclass(frozen=True, slots=True)
class BufferRule:
    """The buffers of one API.

    Attributes:
        inputs, outputs: first step of their paths: "0", "tensor".
    """

    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()

    def covers(self, path: str) -> bool:
        """Whether the value at `path` (`input.0.1`, `output.0`) is, or is part of, a buffer."""
        side, _, rest = path.partition(".")
        return rest.partition(".")[0] in (self.inputs if side == "input" else self.outputs)


class BufferRules:
    """Rules by framework and API."""

    def __init__(self, rules: dict[tuple[str, str], BufferRule]) -> None:
        self._rules = rules

    def of(self, api: str, framework: str) -> BufferRule | None:
        """The rule for an API called `Mint.empty` in a dump of `framework`, or None."""
        name = api.lower()
        return self._rules.get((framework, name)) or self._rules.get((_ANY_FRAMEWORK, name))


def read_rules(own: Path | None) -> BufferRules:
    """The built-in rules, and those in the file `own`, which replace built-in ones for the same API.

    Raises:
        RuleError: the file cannot be read or has another form.
    """
    return BufferRules({**_read(_BUILT_IN), **(_read(own) if own is not None else {})})


@cache
def _read(path: Path) -> dict[tuple[str, str], BufferRule]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RuleError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RuleError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, list):
        raise RuleError(f"{path}: expected a list of entries with {', '.join(_KEYS)}, found {type(content).__name__}")
    rules: dict[tuple[str, str], BufferRule] = {}
    for number, entry in enumerate(content, start=1):
        place = f"{path}: entry {number}"
        _check(entry, place)
        rule = BufferRule(_steps(entry, "inputs"), _steps(entry, "outputs"))
        frameworks = entry.get("frameworks", [_ANY_FRAMEWORK])
        rules.update({(framework, api.lower()): rule for api in entry["apis"] for framework in frameworks})
    return rules


def _check(entry: Any, place: str) -> None:
    if not isinstance(entry, dict):
        raise RuleError(f"{place}: expected the keys {', '.join(_KEYS)}, found {entry!r}")
    for key, value in entry.items():
        if key not in _KEYS:
            raise RuleError(f"{place}: unknown key {key!r}; known are {', '.join(_KEYS)}")
        wanted = (str,) if key in ("apis", "frameworks") else (str, int)
        if not isinstance(value, list) or not all(isinstance(item, wanted) for item in value):
            words = "names" if wanted == (str,) else "positions and names of keywords"
            raise RuleError(f"{place}: key {key!r}: expected a list of {words}, found {value!r}")
    if not entry.get("apis") or not (entry.get("inputs") or entry.get("outputs")):
        raise RuleError(f"{place}: needs apis, and inputs or outputs")


def _steps(entry: dict[str, Sequence[str | int]], key: str) -> frozenset[str]:
    found: Iterable[str | int] = entry.get(key, ())
    return frozenset(map(str, found))
