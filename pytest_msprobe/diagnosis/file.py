"""The file of a diagnosis: it replaces an earlier one, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_msprobe.diagnosis.value import Diagnosis

_BEGINNING = b'{\n "schema": '


def check_replaceable(path: Path) -> None:
    """Refuse to write over a file at `path` that this plugin did not write.

    Raises:
        FileExistsError: the file is no diagnosis.
        OSError: it cannot be read.
    """
    if path.exists():
        with path.open("rb") as file:
            beginning = file.read(len(_BEGINNING))
        if not _BEGINNING.startswith(beginning):
            raise FileExistsError(f"{path} holds something else than a diagnosis, and is not replaced")


def write_diagnosis(path: Path, found: Diagnosis) -> None:
    """Write `found` into the file at `path`. Raises OSError."""
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), "wb") as file:
        file.write(found.to_json())
