"""The tables of `pytest_msprobe.apis.operators` for the installed frameworks: public operators without the excluded."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from itertools import groupby
from pathlib import Path

from msprobe_collector.configuration import ApiList
from msprobe_collector.dump_format import ApiName
from msprobe_collector.mindspore.discovery import find_apis
from pytest_msprobe.apis import operators
from pytest_msprobe.apis.fact_table import reason_uncomputable
from pytest_msprobe.apis.operators import Framework
from tools.operators.mindspore_surface import PublicApi, public_apis
from tools.operators.torch_surface import public_operators

FOLDER = Path(operators.__file__).parent
_MODULES = {
    "Mint": "mindspore.mint",
    "MintFunctional": "mindspore.mint.nn.functional",
    "Functional": "mindspore.ops",
    "Tensor": "mindspore.Tensor",
}
_PRIMITIVE_MODULES = ("mindspore.ops", "mindspore.ops.operations", "mindspore.ops.auto_generate")
#: Attributes of a MindSpore tensor that dumps record as if they were methods.
_PROPERTIES = ("H", "T", "dtype", "itemsize", "mT", "nbytes", "ndim", "shape", "size", "strides")
_HEAD = """\
# Operators of {name} {version} that a record may call. Written by `python -m tools.operators`: review changes
# as code; what must not be called goes into excluded.txt with its reason. `[type of record] where the names stand`.
"""


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its `file` name and its `text`."""

    file: str
    text: str


def mindspore_table() -> Table:
    """The table of the installed MindSpore. Imports it."""
    version = metadata.version("mindspore")
    kept = [api for api in mindspore_surface() if not _is_uncomputable(api)]
    return _table("mindspore", "MindSpore", version, ((api, _owner(api)) for api in kept))


def torch_table() -> Table:
    """The table of the installed PyTorch. Imports it."""
    version = metadata.version("torch").partition("+")[0]
    return _table("torch", "PyTorch", version, ((api, api.namespace) for api in public_operators()))


def mindspore_surface() -> tuple[PublicApi, ...]:
    """Everything of the installed MindSpore that a record may name, as far as an engine runs its type. Imports it."""
    apis = [*public_apis(), *_hooked(), *(PublicApi("Tensor", "Tensor", name) for name in _properties())]
    return tuple(api for api in apis if api.type in _MODULES or api.type == "Primitive")


@cache
def excluded() -> Mapping[tuple[str, str], str]:
    """Reasons of excluded.txt by (framework, name or `Type.name`).

    A line `[framework] reason` applies to the names on the lines after it.
    """
    found: dict[tuple[str, str], str] = {}
    framework = reason = ""
    for line in (FOLDER / "excluded.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            framework, _, reason = line[1:].partition("] ")
        elif not line.startswith("#"):
            found.update({(framework, name): reason for name in line.split()})
    return found


def _table(framework: Framework, name: str, version: str, apis: Iterable[tuple[PublicApi, str]]) -> Table:
    kept = {(api.type, owner, api.name) for api, owner in apis if not _is_excluded(framework, api)}
    lines = [_HEAD.format(name=name, version=version)]
    for (api_type, owner), members in groupby(sorted(kept), key=lambda entry: entry[:2]):
        lines += [f"[{api_type}] {owner}", textwrap.fill(" ".join(entry[2] for entry in members), 120), ""]
    family = "_".join(version.split(".")[:2])
    return Table(f"{framework}_{family}.txt", "\n".join(lines).rstrip() + "\n")


def _is_excluded(framework: Framework, api: PublicApi) -> bool:
    return bool({(framework, api.name), (framework, f"{api.type}.{api.name}")} & excluded().keys())


def _is_uncomputable(api: PublicApi) -> bool:
    # The attribute that held a Primitive stands before its class in a record.
    name = f"_.{api.name}" if api.type == "Primitive" else api.name
    return reason_uncomputable(ApiName(api.type, name, 0)) is not None


def _hooked() -> Iterator[PublicApi]:
    """What the collector records: also functions that MindSpore documents but leaves out of its lists."""
    for target in find_apis(ApiList()):
        api_type, _, name = target.call.partition(".")
        yield PublicApi("", api_type, name)


def _owner(api: PublicApi) -> str:
    return _primitive_owner(api.name) if api.type == "Primitive" else _MODULES[api.type]


def _primitive_owner(name: str) -> str:
    modules = {path: importlib.import_module(path) for path in _PRIMITIVE_MODULES}
    return next(path for path, module in modules.items() if inspect.isclass(getattr(module, name, None)))


def _properties() -> Iterator[str]:
    tensor = importlib.import_module("mindspore").Tensor
    return (name for name in _PROPERTIES if hasattr(tensor, name))
