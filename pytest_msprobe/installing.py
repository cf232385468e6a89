"""What is installed, and how to install what is missing: said in one way everywhere."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec

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


def how_to_install(package: str) -> str:
    """`PyTorch is not installed (pip install '.[torch]' in a clone of pytest-msprobe)`."""
    name, extra = _EXTRAS[package]
    if not extra:
        return f"{name} is not installed; it must be the release for the installed PyTorch and CANN"
    return f"{name} is not installed (pip install '.[{extra}]' in a clone of pytest-msprobe)"


def version_of(distribution: str) -> str:
    """Installed version of a distribution, or "not installed"."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
