"""similarities.csv, in the form of the existing tool: a row per parameter, a column per step, `summary` last."""

from __future__ import annotations

import csv
import os
from datetime import datetime, timedelta
from pathlib import Path

from pytest_msprobe.reports.csv_pair import neutral
from pytest_msprobe.suites.gradients.findings import Findings


def reserve_folder(out: Path) -> Path:
    """A new folder `gradients_{time}` in `out`, for this run alone. Raises OSError."""
    out.mkdir(mode=0o750, parents=True, exist_ok=True)
    moment = datetime.now()
    while True:
        folder = out / f"gradients_{moment:%Y%m%d%H%M%S}"
        try:
            folder.mkdir(mode=0o750)
        except FileExistsError:
            moment += timedelta(seconds=1)  # another run of the same second
        else:
            return folder


def write_similarities(folder: Path, findings: Findings, rank: int) -> Path:
    """Write `similarities.csv` of `rank` into `folder`; its path. A cell is empty where nothing was compared.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(mode=0o750, exist_ok=True)
    path, steps, found = folder / "similarities.csv", findings.steps(rank), findings.agreements[rank]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *steps])
        for name in findings.parameters(rank):
            cells = [found[name][step].similarity if step in found[name] else "" for step in steps]
            writer.writerow([neutral(name), *cells])
        writer.writerow(["summary", *(findings.overall(rank, step).similarity for step in steps)])
    return path
