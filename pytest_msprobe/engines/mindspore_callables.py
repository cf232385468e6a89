"""The callable of MindSpore that a record names: a function, a method of Tensor, or an instance of a Primitive."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.apis.operators import find_operator
from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.torch_map import missing_attributes

#: API types of MSAdapter, which passes calls on to functions of mint of the same names and arguments.
_OF_MSADAPTER = {"Torch": "Mint", "Functional": "MintFunctional", "Tensor": "Tensor"}


def in_mindspore(api: ApiName, framework: str) -> ApiName:
    """`api` of a dump of `framework` under MindSpore's own name: `Mint.add` for `Torch.add` of MSAdapter."""
    if framework != "mindtorch":
        return api
    return ApiName(_OF_MSADAPTER.get(api.type, api.type), api.api, api.number)


def resolve(mindspore: Any, api: ApiName, attributes: Mapping[str, Any] | None) -> Callable[..., Any]:
    """The callable of `api`, which the table of operators has.

    Args:
        mindspore: the framework.
        api: name of the API call.
        attributes: what the class of a Primitive was called with; None where the dump does not say.

    Raises:
        Unsupported: this version lacks it, or it needs attributes that the dump does not hold.
    """
    path = find_operator("mindspore", api.type, api.table_name)
    assert path is not None  # MindSporeEngine.refusal has seen to it
    if api.type == "Tensor":
        return method_of(mindspore.Tensor, path.rpartition(".")[2])
    found = found_at(mindspore, path)
    if found is None or not callable(found):
        raise Unsupported(f"MindSpore {mindspore.__version__} has no {path}")
    return instance_of(found, attributes) if api.type == "Primitive" else cast(Callable[..., Any], found)


def instance_of(found: Any, attributes: Mapping[str, Any] | None) -> Callable[..., Any]:
    """An instance of a Primitive's class, made with the `attributes` that its constructor takes.

    Raises:
        Unsupported: an argument of the constructor is not among the attributes.
    """
    taken = list(inspect.signature(found.__init__).parameters)[1:]
    given = {name: value for name, value in (attributes or {}).items() if name in taken}
    if len(given) < len(taken):
        raise Unsupported(f"{found.__name__}: {missing_attributes([name for name in taken if name not in given])}")
    return cast(Callable[..., Any], found(**given))


def method_of(tensor_type: type, name: str) -> Callable[..., Any]:
    """The method or property `name` of a tensor, as a function of that tensor."""

    def call(tensor: Any = None, *arguments: Any, **keywords: Any) -> Any:
        """Call the method of `tensor`, or read the property of that name.

        Raises:
            Unsupported: `tensor` is not a tensor, or has no such method in this MindSpore.
        """
        if not isinstance(tensor, tensor_type):
            raise Unsupported("the tensor whose method it is was not recorded")
        attribute = getattr(tensor, name, None)
        if attribute is None:
            raise Unsupported(f"this MindSpore's Tensor has no {name}")
        # Some names that PyTorch has as methods are properties here (`size`).
        return attribute(*arguments, **keywords) if callable(attribute) else attribute

    return call


def found_at(mindspore: Any, path: str) -> Any:
    """What stands at `path` of the table of operators; None when this version lacks it."""
    found = mindspore
    for step in path.split(".")[1:]:
        found = getattr(found, step, None)
    return found
