"""Which callables of the installed MindSpore are APIs: found by looking, less a list of those that are not meant."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msprobe_collector.configuration import ApiList, ApiPlace
from msprobe_collector.recording.installation import ApiTarget

logger = logging.getLogger("msprobe_collector")

_TENSOR = "mindspore.Tensor"


def find_apis(user: ApiList) -> list[ApiTarget]:
    """Every API to hook, in the order in which names win: the first place of a callable names it where others share it.

    Args:
        user: what the user's YAML adds and removes. A place that does not exist is warned about.
    """
    import yaml

    content = yaml.safe_load((Path(__file__).parent / "hooked_apis.yaml").read_text(encoding="utf-8"))
    denied = {ApiPlace(module, name) for module, names in content["deny"].items() for name in names.split()}
    denied.update(user.remove)
    operators = tuple(content["tensor_operators"].split())
    types = {module: api_type for api_type, modules in content["families"].items() for module in modules}
    targets = []
    for module, api_type in types.items():
        owner = resolve(module)
        if owner is None:  # an older MindSpore
            continue
        unlisted = content["unlisted"].get(module, "").split()
        names = _tensor_names(owner, operators) if module == _TENSOR else _public_names(owner, unlisted)
        targets += list(_targets(owner, module, api_type, (name for name in names if (module, name) not in denied)))
    return targets + list(_added(user.add, types, denied))


def resolve(path: str) -> Any:
    """The module or class at the dotted `path`, or None."""
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        return getattr(resolve(module), name, None) if module else None


def _targets(owner: Any, module: str, api_type: str, names: Iterable[str]) -> Iterator[ApiTarget]:
    for name in names:
        original = getattr(owner, name, None)
        if callable(original) and not inspect.isclass(original) and not inspect.ismodule(original):
            yield ApiTarget(owner, name, original, f"{api_type}.{name}")


def _public_names(owner: Any, unlisted: list[str]) -> list[str]:
    listed = getattr(owner, "__all__", None) or dir(owner)
    return sorted({name for name in (*listed, *unlisted) if not name.startswith("_")})


def _tensor_names(tensor: Any, operators: tuple[str, ...]) -> list[str]:
    methods = [
        name
        for name in dir(tensor)
        if not name.startswith("_") and not isinstance(inspect.getattr_static(tensor, name), (property, staticmethod))
    ]
    return methods + [name for name in operators if hasattr(tensor, name)]


def _added(places: Iterable[ApiPlace], types: dict[str, str], denied: set[ApiPlace]) -> Iterator[ApiTarget]:
    for module, name in places:
        owner = resolve(module)
        if not callable(getattr(owner, name, None)):
            logger.warning("api_list adds %s.%s, which is not a callable here; it is not collected", module, name)
        elif (module, name) not in denied:
            yield from _targets(owner, module, types.get(module, module), (name,))
