"""The real dumps of tests/dumps in one folder, those that are archives unpacked."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

COMMITTED = Path(__file__).parent / "dumps"
_ARCHIVE = ".tar.xz"


@cache
def real_dumps() -> Path:
    """A temporary folder with everything in tests/dumps; `NAME.tar.xz` there is the folder `NAME` here.

    It is made once per machine, user and content of tests/dumps, and gets its name when it is complete, so that several
    processes may ask at the same time.
    """
    folder = Path(tempfile.gettempdir()) / f"pytest-msprobe-dumps-{os.getuid()}-{_digest()}"
    if not folder.is_dir():
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))
        _fill(unfinished)
        try:
            unfinished.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder}: belongs to another user; remove it, or set TMPDIR")
    return folder


def _fill(folder: Path) -> None:
    for source in COMMITTED.iterdir():
        if source.name.endswith(_ARCHIVE):
            with tarfile.open(source) as archive:
                archive.extractall(folder, filter="data")
        elif source.is_dir():
            shutil.copytree(source, folder / source.name)


def _digest() -> str:
    """Changes with any file of tests/dumps."""
    digest = hashlib.sha256()
    for path in sorted(COMMITTED.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(COMMITTED)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
