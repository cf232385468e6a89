"""What msProbe's comparison says of the pairs of the catalogue; kept in a file, so that the page needs no msProbe."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_STORE = Path(__file__).with_name("msprobe_answers.json")
#: Names the Python that has msProbe.
VARIABLE = "MSPROBE_REFERENCE_PYTHON"


@dataclass(frozen=True)
class Answer:
    """The rows of its table that are no pass.

    Attributes:
        rows: of the table.
        errors, warnings: rows marked so.
        first: name of the first one of both.
        place: which of them is the first of the right operation or value, from 1 on; 0 when none is.
        failure: why there is no table, "" when there is.
    """

    rows: int
    errors: int
    warnings: int
    first: str = ""
    place: int = 0
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return "no table (needs MindSpore)"
        if not self.errors + self.warnings:
            return "nothing marked"
        right = {0: "the right one is not marked", 1: "the right one is first"}
        where = right.get(self.place, f"the right one is number {self.place}")
        return f"{self.marked}; {where}"

    @property
    def marked(self) -> str:
        """How many rows are no pass."""
        return str(self) if self.failure else f"{self.errors} errors, {self.warnings} warnings of {self.rows}"


def run(pairs: Iterable[tuple[Path, Path, Path]]) -> None:
    """Compare (target, golden, folder of the pair) where that has no table yet; nothing without `VARIABLE`."""
    python = os.environ.get(VARIABLE)
    waiting = [
        [str(target), str(golden), str(folder / "msprobe")]
        for target, golden, folder in pairs
        if not (folder / "msprobe").exists()
    ]
    if not python or not waiting:
        return
    wanted = Path(waiting[0][2]).parents[1] / "pairs.json"
    wanted.write_text(json.dumps(waiting), encoding="utf-8")
    script = Path(__file__).with_name("msprobe_runs.py")
    subprocess.run([python, str(script), str(wanted)], check=True, capture_output=True)


def read(folder: Path, right: Sequence[str]) -> Answer | None:
    """The answer for the pair in `folder`; names of rows of the right operations begin with one of `right`."""
    tables = sorted((folder / "msprobe").glob("compare_result_*.csv"))
    if not tables:
        return (
            Answer(0, 0, 0, failure="no MindSpore beside it") if (folder / "msprobe" / "failed.txt").exists() else None
        )
    with tables[-1].open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    marked = [row for row in rows if row["Result"].lower() in ("error", "warning")]
    names = [(row["NPU Name"], row["Bench Name"]) for row in marked]
    place = next((at for at, both in enumerate(names, 1) if any(_begins(name, right) for name in both)), 0)
    errors = sum(row["Result"].lower() == "error" for row in marked)
    return Answer(len(rows), errors, len(marked) - errors, names[0][0] if names else "", place)


def _begins(name: str, right: Sequence[str]) -> bool:
    return any(f"{name}.".startswith(f"{own}.") for own in right)


def stored() -> dict[str, Answer]:
    """By the name of the pair."""
    if not _STORE.exists():
        return {}
    return {name: Answer(**fields) for name, fields in json.loads(_STORE.read_text(encoding="utf-8")).items()}


def store(answers: dict[str, Answer]) -> None:
    """Keep them."""
    fields = {name: asdict(answer) for name, answer in sorted(answers.items())}
    _STORE.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
