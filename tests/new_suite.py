"""The package of docs/new_suite.md. `python tests/new_suite.py FOLDER` writes it there, for pip to install."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "new_suite.md").read_text(encoding="utf-8")
#: (kind, path, text) of each file and of each change on the page.
BLOCKS: list[tuple[str, str, str]] = re.findall(r"^```(\w+) (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def write_package(folder: Path, name: str = "magnitude") -> None:
    """Write the sources of the package; its suite is called `name`."""
    for kind, path, text in BLOCKS:
        if kind != "diff":
            file = folder / path.replace("magnitude", name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("magnitude", name).replace("Magnitude", name.title()), encoding="utf-8")


def install(folder: Path, name: str = "magnitude") -> None:
    """Write the package into a folder of the import path, as pip would."""
    write_package(folder, name)
    write_metadata(folder, (folder / "pyproject.toml").read_text(encoding="utf-8"))


def write_metadata(folder: Path, pyproject: str) -> None:
    """Write what pip writes of a package: its name, version and entry points."""
    (name,) = re.findall(r'^name = "(.*)"$', pyproject, re.MULTILINE)
    groups = re.findall(r'^\[project\.entry-points\."?([\w.]+)"?\]\n((?:.+\n)+)', pyproject, re.MULTILINE)
    lines = [f"[{group}]\n{entries}".replace('"', "") for group, entries in groups]
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def apply_changes(folder: Path, blocks: list[tuple[str, str, str]]) -> None:
    """Make the changes of a page to files below `folder`."""
    for kind, name, text in blocks:
        if kind != "diff":
            continue
        lines = text.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        old = (folder / name).read_text(encoding="utf-8")
        assert old.count(before) == 1, f"{name}: the page changes lines that are not there: {before}"
        (folder / name).write_text(old.replace(before, after), encoding="utf-8")


if __name__ == "__main__":
    write_package(Path(sys.argv[1]))
