"""Fetches and checks the browser libraries of the page, from the npm registry.

    python -m tools.vendor

`assets/vendored/libraries.json` says which files of which versions, with their checksums. The command fetches the
packages with `npm pack`, checks them, and writes the files and the licences; a newer version is a change there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest_msprobe

FOLDER = Path(pytest_msprobe.__file__).parent / "reports" / "page" / "assets" / "vendored"
LIBRARIES = FOLDER / "libraries.json"
_MAP_COMMENT = b"\n//# sourceMappingURL="


def vendor(folder: Path = FOLDER) -> list[Path]:
    """Write every library into `folder`; the files.

    Raises:
        ValueError: a file is not the one that `libraries.json` describes.
        subprocess.CalledProcessError: npm cannot fetch a package.
    """
    written: dict[Path, None] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, library in json.loads(LIBRARIES.read_text(encoding="utf-8")).items():
            package, version = library["package"], library["version"]
            tarball = fetched(f"{package}@{version}", Path(scratch))
            _check(f"{package}@{version}", tarball.read_bytes(), library["tarball_sha256"])
            with tarfile.open(tarball) as content:
                # A page has no source map to point to, and must ask for nothing.
                text = member(content, library["file"]).partition(_MAP_COMMENT)[0].strip() + b"\n"
                _check(name, text, library["sha256"])
                licence = member(content, "LICENSE")
            for path, found in ((folder / name, text), (folder / f"LICENSE.{package}", licence)):
                path.write_bytes(found)
                written[path] = None
    return list(written)


def fetched(package: str, scratch: Path) -> Path:
    """The tarball of `package`, as `name@version`, in the folder `scratch`. Raises subprocess.CalledProcessError."""
    npm = shutil.which("npm") or "npm"
    subprocess.run([npm, "pack", "--silent", package], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
    name = package.rpartition("@")
    return scratch / f"{name[0]}-{name[2]}.tgz"


def member(content: tarfile.TarFile, name: str) -> bytes:
    """The content of the file `name` of a package.

    Raises:
        KeyError: the package has no such file.
        ValueError: what has that name is not a file.
    """
    file = content.extractfile(f"package/{name}")
    if file is None:
        raise ValueError(f"{name}: the package has no such file")
    return file.read()


def _check(what: str, content: bytes, expected: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ValueError(f"{what}: its sha256 is {found}, and {LIBRARIES.name} says {expected or 'nothing'}")


if __name__ == "__main__":
    sys.stdout.writelines(f"{path}\n" for path in vendor())
