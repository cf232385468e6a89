"""What is installed, what an exception says, and how modules are found: said in one way everywhere."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

#: Optional packages by the name that they are imported by: (what it is called, the extra that brings it).
_EXTRAS = {
    "mindspore": ("MindSpore", "mindspore"),
    "torch": ("PyTorch", "torch"),
    "torch_npu": ("torch_npu", ""),
    "matplotlib": ("Matplotlib", "plot"),
    "xlsxwriter": ("XlsxWriter", "xlsx"),
}


def is_installed(package: str) -> bool:
    """Whether `package` can be imported; imports nothing."""
    return find_spec(package) is not None


def name_of(package: str) -> str:
    """Give the name of an optional package as its makers write it."""
    return _EXTRAS[package][0]


def how_to_install(package: str) -> str:
    """`PyTorch is not installed (pip install 'pytest-msprobe[torch]')`.

    pip takes the pytest-msprobe that is installed, whether it came from a wheel, an index or a clone.
    """
    name, extra = _EXTRAS[package]
    if not extra:
        return f"{name} is not installed; it must be the release for the installed PyTorch and CANN"
    return f"{name} is not installed (pip install 'pytest-msprobe[{extra}]')"


def version_of(distribution: str) -> str:
    """Installed version of a distribution, or "not installed"."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


_INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))


def place_of(error: BaseException) -> str:
    """`conftest.py:12`: the deepest line outside installed packages that an exception passed, or "" without one."""
    # "<": generated code, as that of dataclasses.
    not_ours = (*_INSTALLED, "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(not_ours)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def text_of(error: BaseException) -> str:
    """Type and message of an exception of a framework, in one line, without its C++ stack."""
    message = str(error).strip().partition("\n\n---")[0]
    lines = " ".join(line.strip() for line in message.splitlines() if line.strip(" -"))
    shown = lines if len(lines) <= 600 else f"{lines[:597]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


_NUMBER = re.compile(r"[-+]?\b\d[\d.,]*(?:e[-+]?\d+)?\b", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w<])/[^\s:,;'\"]+")


def without_numbers(text: str) -> str:
    """A message in which only what tells one kind of failure from another stands: no number, no path."""
    return " ".join(_NUMBER.sub("#", _PATH.sub("PATH", text)).split())


#: Top-level packages that are found as Python does without pytest.
_PACKAGES = {"pytest_msprobe", "msprobe_collector"}


class OrdinaryFinder:
    """Finds our modules as Python does without pytest, before the finder that rewrites assertions.

    pytest compiles every module of a plugin's distribution anew to rewrite its `assert` statements, in each process
    where PYTHONDONTWRITEBYTECODE is set: 10 ms for each of 120 modules. Ours are no tests. A module's docstring can
    refuse (PYTEST_DONT_REWRITE), but is read and compiled all the same.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """None for all other modules, and for what another finder provides."""
        return PathFinder.find_spec(name, path, target) if name.partition(".")[0] in _PACKAGES else None


def install_finder() -> None:
    """Put the finder first, once in a process."""
    if OrdinaryFinder not in sys.meta_path:
        sys.meta_path.insert(0, OrdinaryFinder)


def entry_points_of(group: str) -> list[metadata.EntryPoint]:
    """The entry points of a group, of all packages that are installed, ours first, else by name."""
    listed = list(metadata.entry_points(group=group))
    _PACKAGES.update(re.split(r"[.:]", entry_point.value)[0] for entry_point in listed)
    return sorted(
        listed, key=lambda entry_point: (not entry_point.value.startswith("pytest_msprobe."), entry_point.name)
    )


def left_out(entry_point: metadata.EntryPoint, why: str) -> str:
    """One line on an entry point that cannot be used, with the name of its package."""
    package = entry_point.dist.name if entry_point.dist is not None else "a package without a name"
    return f"{package}: its entry point {entry_point.name!r} of {entry_point.group} is left out: {why}"


def write_whole(path: Path, write: Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """Let `write` fill the file at `path`, which is there only when it is whole. Raises OSError."""
    part = path.with_name(f".{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            write(file)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
