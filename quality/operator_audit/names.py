"""Names to try as records: every public name of both frameworks, and names that were seen to run code."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

from pytest_msprobe.apis.operators import find_operator
from pytest_msprobe.engines.torch_bindings import NoCounterpart, lookup

#: API types of the records, by the framework of the dump.
TYPES = {
    "mindspore": ("Mint", "MintFunctional", "Functional", "Tensor", "Primitive"),
    "pytorch": ("Torch", "Functional", "Tensor", "VF", "Aten", "NPU"),
}
_SURFACES = """
    torch torch.Tensor torch.nn.functional torch.linalg torch.fft torch.special torch._VF torch.ops.aten
    mindspore mindspore.ops mindspore.ops.operations mindspore.ops.auto_generate mindspore.ops.functional
    mindspore.Tensor
    mindspore.mint mindspore.mint.nn mindspore.mint.nn.functional mindspore.mint.linalg mindspore.mint.special
""".split()
#: Modules that frameworks hold as attributes of their own, or that an attribute of theirs leads to.
_MODULES = "os sys builtins subprocess shutil importlib ctypes inspect pickle hub utils serialization _C".split()
HOSTILE = """
    os.system os.remove os.execv os.popen builtins.exec builtins.eval builtins.open builtins.__import__ torch.os.system
    ops.load_library hub.load hub.os.system hub.download_url_to_file save load from_file jit.load jit.save
    classes.load_library operations.custom_ops.os.system auto_generate.gen_ops_def.os.system nn.functional.os.system
    nn.functional.torch.os.system
    utils.cpp_extension.load_inline _C._jit_set_profiling_mode set_default_dtype set_num_threads compile manual_seed
    __class__ __init__ __dict__ __getattribute__ __reduce_ex__ __setstate__ __builtins__ __loader__.load_module
    add.__globals__ add.__self__ abs.__class__.__base__.__subclasses__ tofile numpy.tofile tensordump print_
    TensorDump Custom Print PyFunc CustomOpBuilder set_context set_device run_check export save_checkpoint
    load_checkpoint
""".split()


def refused_records(framework: str) -> Iterator[tuple[str, str]]:
    """(API type, name) of every name under every API type of `framework`, without those that may be called."""
    names = [*dict.fromkeys((*HOSTILE, *_surface_names()))]
    for api_type in TYPES[framework]:
        for name in names:
            if not may_be_called(framework, api_type, name):
                yield api_type, name


def may_be_called(framework: str, api_type: str, name: str) -> bool:
    """Whether some engine has a callable for this API."""
    known = name.rpartition(".")[2] if api_type == "Primitive" else name
    if framework == "mindspore" and find_operator("mindspore", api_type, known) is not None:
        return True
    return not isinstance(lookup(api_type, known, framework), NoCounterpart)


def _surface_names() -> Iterator[str]:
    for path in _SURFACES:
        yield from dir(_at(path))
    for path in ("torch", "mindspore", "mindspore.ops", "torch.nn.functional", "mindspore.mint"):
        for module in _MODULES:
            inner = getattr(_at(path), module, None)
            if isinstance(inner, ModuleType):
                yield from (f"{module}.{name}" for name in dir(inner))


def _at(path: str) -> object:
    root, *steps = path.split(".")
    found: object = importlib.import_module(root)
    for step in steps:
        found = getattr(found, step)
    return found
