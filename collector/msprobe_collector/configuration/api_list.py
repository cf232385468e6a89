"""The user's YAML of APIs: which are hooked besides those found in MindSpore, and which are left alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msprobe_collector.dump_format.yaml_files import YamlFileError, read_yaml


class ApiPlace(NamedTuple):
    """Where a callable stands: `mindspore.mint` and `add`, or `mindspore.Tensor` and `__add__`."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class ApiList:
    """APIs to hook besides those found by introspection, and those to leave alone.

    Attributes:
        add: in the order of the file.
        remove: wins over `add`.
    """

    add: tuple[ApiPlace, ...] = ()
    remove: tuple[ApiPlace, ...] = ()


def read_api_list(path: Path) -> ApiList:
    """The APIs named in the YAML file `path`: keys `add` and `remove`, under each modules with lists of names.

    Raises:
        ValueError: the file cannot be read or has another form; one line that names it.
    """
    try:
        content = read_yaml(path) or {}
    except YamlFileError as error:
        raise ValueError(f"{str(path)!r} {error}") from None
    if not isinstance(content, dict) or not content.keys() <= {"add", "remove"}:
        raise ValueError(f"{str(path)!r} has not the keys add and remove alone, each with modules and their API names")
    return ApiList(_places(content.get("add"), path), _places(content.get("remove"), path))


def _places(modules: Any, path: Path) -> tuple[ApiPlace, ...]:
    if modules is None:
        return ()
    if not isinstance(modules, dict):
        raise ValueError(f"{str(path)!r} has {modules!r} where modules with lists of API names belong")
    for module, names in modules.items():
        if not (isinstance(module, str) and isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError(f"{str(path)!r} has {names!r} under {module!r}; give a list of API names")
    return tuple(ApiPlace(module, name) for module, names in modules.items() for name in names)
