"""A new CSV file for the results of a run, named after the time."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from io import TextIOWrapper
from pathlib import Path


def new_result_file(folder: Path, stem: str) -> TextIOWrapper:
    """`{stem}_{time}.csv` in `folder`, which is created when absent. Raises OSError."""
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    moment = datetime.now()
    while True:
        path = folder / f"{stem}_{moment:%Y%m%d%H%M%S}.csv"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        except FileExistsError:
            moment += timedelta(seconds=1)  # another run of the same second
            continue
        os.close(descriptor)
        # backslashreplace: a path in a message may hold bytes that are not text; they must not cost the row.
        return path.open("w", encoding="utf-8-sig", errors="backslashreplace", newline="")
