"""Laws without a line in the script: `MSPROBE_LAWS=1 python train.py`.

`msprobe_laws.pth` of the wheel calls `install` when a Python process starts with that variable; then the laws of
PyTorch or of MindSpore are watched as soon as the script has imported it. Without the variable nothing is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

#: Anything but "" and "0" has the laws checked; a path names the folder of what they say.
ENVIRONMENT = "MSPROBE_LAWS"
#: Names of laws to leave out, with commas between them.
SKIP = "MSPROBE_LAWS_SKIP"
DEFAULT_FOLDER = "msprobe_laws"
#: Module with `watch_laws` by the framework's module.
_WATCHES = {"torch": "msprobe_laws.pytorch.watch", "mindspore": "msprobe_laws.mindspore.watch"}


def folder_of(value: str) -> Path:
    """The folder that a value of MSPROBE_LAWS names; relative ones are below the current folder of the script."""
    return Path(DEFAULT_FOLDER if value in ("", "0", "1", "true", "yes", "on") else value).absolute()


def left_out() -> list[str]:
    """Laws that MSPROBE_LAWS_SKIP names."""
    return [name.strip() for name in os.environ.get(SKIP, "").split(",") if name.strip()]


def install() -> None:
    """Watch the laws as soon as PyTorch or MindSpore is imported."""
    if os.environ.get(ENVIRONMENT, "") in ("", "0") or any(isinstance(one, _Finder) for one in sys.meta_path):
        return
    for name in _WATCHES:
        if name in sys.modules:
            _watch(name)
    sys.meta_path.insert(0, _Finder())


def _watch(name: str) -> None:
    """Begin; whatever goes wrong is one line, and the training goes on."""
    try:
        import_module(_WATCHES[name]).watch_laws()
    except Exception as error:
        sys.stderr.write(f"msprobe: laws of {name} are not checked: {type(error).__name__}: {error}\n")


class _Finder(MetaPathFinder):
    """Finds the frameworks by the other finders, and has their modules watched when they have been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        if fullname not in _WATCHES:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Executes a module by its own loader, which it then puts back."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See `Loader`."""
        made: ModuleType | None = self._own.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """See `Loader`."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        module.__loader__ = self._own
        self._own.exec_module(module)
        _watch(module.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
