"""Names of parameters: in the models that are watched, else in whatever model has them."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Any

from torch.nn import Module

from msprobe_collector.recording.other_records import ParameterNames


def parameter_names() -> ParameterNames:
    """Return names of parameters in the watched Modules, else in any model."""
    return ParameterNames(own_parameters, lambda others: names_in_models(set(map(id, others))))


def own_parameters(module: Any) -> dict[str, Any]:
    """Return the parameters that stand on `module` itself, each by its first name; most have none."""
    if type(module).named_parameters is not Module.named_parameters:
        return dict(module.named_parameters(recurse=False))
    first: dict[int, tuple[str, Any]] = {}
    for name, parameter in module._parameters.items():
        if parameter is not None:
            first.setdefault(id(parameter), (name, parameter))
    return dict(first.values())


#: What begins the names of all parameters in a model that is wrapped (DistributedDataParallel).
_WRAPPER = "module."
#: Attribute in which the Module that torch.compile puts around another one holds that.
_COMPILED = "_orig_mod"


def without_compiler(path: str) -> str:
    """Return the path of a Module or parameter as it is where nothing is compiled."""
    return path if _COMPILED not in path else ".".join(part for part in path.split(".") if part != _COMPILED)


def uncompiled(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) with the paths as they are where nothing is compiled."""
    return ((without_compiler(path), value) for path, value in named)


def inside_compiled(module: Any) -> Any:
    """Return the Module that torch.compile has put `module` around, or `module` itself."""
    return getattr(module, _COMPILED, module)


def outermost_modules() -> list[Any]:
    """Modules of this process that stand in no other one."""
    modules = [value for value in gc.get_objects() if issubclass(type(value), Module) and "_modules" in vars(value)]
    inner = {id(module) for outer in modules for module in outer._modules.values()}
    return [module for module in modules if id(module) not in inner]


def names_in_models(wanted: set[int]) -> dict[int, str]:
    """Name by id of each of the `wanted` parameters in the model that has most of them."""
    names_by_model = []
    for model in outermost_modules():
        named = uncompiled(model.named_parameters())
        names = {id(parameter): name for name, parameter in named if id(parameter) in wanted}
        while names and all(name.startswith(_WRAPPER) for name in names.values()):
            names = {key: name.partition(".")[2] for key, name in names.items()}
        names_by_model.append(names)
    # Of two that have equally many the shorter names win; dictionaries keep what is put in last.
    names_by_model.sort(key=lambda names: (len(names), [(-len(name), name) for name in names.values()]))
    return reduce(or_, names_by_model, {})
