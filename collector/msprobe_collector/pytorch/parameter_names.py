"""Names of parameters: in the models that are watched, else in whatever model has them."""

from __future__ import annotations

import gc
from typing import Any

from torch.nn import Module

from msprobe_collector.recording.updates import ParameterNames


def parameter_names() -> ParameterNames:
    """Return names of parameters in the watched Modules, else in any model."""
    return ParameterNames(own_parameters, lambda others: names_in_models(set(map(id, others))))


def own_parameters(module: Any) -> dict[str, Any]:
    """Return the parameters that stand on `module` itself, each by its first name; most have none."""
    if type(module).named_parameters is not Module.named_parameters:
        return dict(module.named_parameters(recurse=False))
    names: dict[int, str] = {}
    for name, parameter in module._parameters.items():
        if parameter is not None:
            names.setdefault(id(parameter), name)
    return {name: module._parameters[name] for name in names.values()}


#: What begins the names of all parameters in a model that is wrapped (DistributedDataParallel).
_WRAPPERS = ("module.",)
#: Attribute in which the Module that torch.compile puts around another one holds that.
_COMPILED = "_orig_mod"


def without_compiler(path: str) -> str:
    """Return the path of a Module or parameter as it is where nothing is compiled."""
    return path if _COMPILED not in path else ".".join(part for part in path.split(".") if part != _COMPILED)


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
        named = ((without_compiler(name), parameter) for name, parameter in model.named_parameters())
        names = {id(parameter): name for name, parameter in named if id(parameter) in wanted}
        while any(all(name.startswith(front) for name in names.values()) for front in _WRAPPERS if names):
            names = {key: name.partition(".")[2] for key, name in names.items()}
        names_by_model.append(names)
    # Of two that have equally many the shorter names win; dictionaries keep what is put in last.
    names_by_model.sort(key=lambda names: (len(names), [(-len(name), name) for name in names.values()]))
    return {key: name for names in names_by_model for key, name in names.items()}
