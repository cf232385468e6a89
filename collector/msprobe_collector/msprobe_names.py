"""Imports of the existing tool, `msprobe`, that get what this package has under their names."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_PYTORCH = dict.fromkeys(("PrecisionDebugger", "seed_all"), "msprobe_collector.pytorch")
_MINDSPORE = dict.fromkeys(("PrecisionDebugger", "seed_all"), "msprobe_collector.mindspore")
_STEPS = dict.fromkeys(("MsprobeStep", "MsprobeInitStep"), "msprobe_collector.mindspore")
_SAVING = dict.fromkeys(("save", "save_grad", "step"), "msprobe_collector.mindspore")
_COMPARING = dict.fromkeys(("compare", "compare_distributed"), "pytest_msprobe.suites.comparison")

#: The modules of the existing tool, of this and of earlier versions, and where the names that we have are here.
NAMES: dict[str, Mapping[str, str]] = {
    "msprobe": {},
    "msprobe.core": {},
    "msprobe.core.common": {},
    "msprobe.pytorch": {**_PYTORCH, **_COMPARING},
    "msprobe.pytorch.common": _PYTORCH,
    "msprobe.pytorch.common.utils": _PYTORCH,
    "msprobe.pytorch.debugger": _PYTORCH,
    "msprobe.pytorch.debugger.precision_debugger": _PYTORCH,
    "msprobe.pytorch.dump": {},
    "msprobe.pytorch.dump.debugger": _PYTORCH,
    "msprobe.pytorch.dump.debugger.precision_debugger": _PYTORCH,
    "msprobe.pytorch.compare": _COMPARING,
    "msprobe.pytorch.compare.distributed_compare": _COMPARING,
    "msprobe.pytorch.compare.pt_compare": _COMPARING,
    "msprobe.mindspore": {**_MINDSPORE, **_STEPS, **_SAVING, **_COMPARING},
    "msprobe.mindspore.common": {**_MINDSPORE, **_STEPS},
    "msprobe.mindspore.common.utils": {**_MINDSPORE, **_STEPS},
    "msprobe.mindspore.debugger": _MINDSPORE,
    "msprobe.mindspore.debugger.precision_debugger": _MINDSPORE,
    "msprobe.mindspore.dump": _SAVING,
    "msprobe.mindspore.dump.debugger": _MINDSPORE,
    "msprobe.mindspore.dump.debugger.precision_debugger": _MINDSPORE,
    "msprobe.mindspore.compare": _COMPARING,
    "msprobe.mindspore.compare.distributed_compare": _COMPARING,
    "msprobe.mindspore.compare.ms_compare": _COMPARING,
}


class MsprobeIsInstalled(ImportError):
    """The existing tool is here, and was not to be replaced; one line."""


def install(*, in_its_place: bool = False) -> None:
    """Have imports of `msprobe` find this package, in this process.

    Args:
        in_its_place: also where the existing tool is installed.

    Raises:
        MsprobeIsInstalled: it is, or it has been imported already.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "msprobe" in sys.modules:
        raise MsprobeIsInstalled("the script has imported msprobe already: import msprobe_collector.as_msprobe before")
    if not in_its_place and PathFinder.find_spec("msprobe") is not None:
        raise MsprobeIsInstalled(
            "msprobe is installed here, and scripts get it; to take msprobe_collector in its place: "
            "python -m msprobe_collector as-msprobe --in-its-place SCRIPT"
        )
    sys.meta_path.insert(0, _Finder())


def _what_instead(name: str) -> str:
    return f"msprobe_collector has no {name}; docs/migration.md of pytest-msprobe names what stands for it"


class _Finder(MetaPathFinder):
    """Finds the modules of the existing tool."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module that we have.

        Raises:
            ModuleNotFoundError: the existing tool may have it, and we have not. With another `name` than that of the
                module, it is what `from msprobe.pytorch import name` raises, too.
        """
        if name in NAMES:
            return ModuleSpec(name, _Loader(), is_package=True)
        if name.startswith("msprobe."):
            raise ModuleNotFoundError(_what_instead(name), name="msprobe")
        return None


class _Loader(Loader):
    """Fills the modules of the existing tool."""

    def exec_module(self, module: ModuleType) -> None:
        """Give a module its names, which load when they are first used."""
        homes = NAMES[module.__name__]

        def load(name: str) -> Any:
            """Return what the existing tool calls `name`.

            Raises:
                AttributeError: we have no such thing.
            """
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            if f"{module.__name__}.{name}" in NAMES:
                return import_module(f"{module.__name__}.{name}")
            if name not in homes:
                raise AttributeError(_what_instead(f"{module.__name__}.{name}"))
            return getattr(import_module(homes[name]), name)

        # `import *` takes what is installed; the collector may be here alone.
        names = [name for name, home in homes.items() if find_spec(home.partition(".")[0]) is not None]
        vars(module).update(__all__=names, __getattr__=load)
