"""What msProbe's comparison says of the pairs of the catalogue; kept in a file, so that the page needs no msProbe."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
            return self.failure
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
        [
            str(_readable(target, folder / "for_msprobe" / "target")),
            str(_readable(golden, folder / "for_msprobe" / "golden")),
            str(folder / "msprobe"),
        ]
        for target, golden, folder in pairs
        if python and not (folder / "msprobe").exists()
    ]
    if not python or not waiting:
        return
    wanted = Path(waiting[0][2]).parents[1] / "pairs.json"
    wanted.write_text(json.dumps(waiting), encoding="utf-8")
    script = Path(__file__).with_name("msprobe_runs.py")
    subprocess.run([python, str(script), str(wanted)], check=True, capture_output=True)


def _readable(dump: Path, copy: Path) -> Path:
    """A copy of a PyTorch dump whose tensors are .npy files, with .pt files, the only ones that msProbe reads there."""
    content = json.loads(dump.read_text(encoding="utf-8"))
    folder = dump.parent / "dump_tensor_data"
    if content["framework"] != "pytorch" or not any(folder.glob("*.npy")):
        return dump
    (copy / "dump_tensor_data").mkdir(parents=True, exist_ok=True)

    def convert(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("data_name"):
                name = value["data_name"]
                tensor = torch.from_numpy(np.load(folder / name))
                tensor = tensor.bfloat16() if value["dtype"].endswith("BFloat16") else tensor
                value["data_name"] = f"{name.removesuffix('.npy')}.pt"
                value["type"], value["dtype"] = "torch.Tensor", str(tensor.dtype)
                torch.save(tensor, copy / "dump_tensor_data" / value["data_name"])
            for item in value.values():
                convert(item)
        elif isinstance(value, list):
            for item in value:
                convert(item)

    convert(content["data"])
    (copy / "stack.json").write_bytes((dump.parent / "stack.json").read_bytes())
    (copy / "dump.json").write_text(json.dumps(content), encoding="utf-8")
    return copy / "dump.json"


def read(folder: Path, right: Sequence[str]) -> Answer | None:
    """The answer for the pair in `folder`; names of rows of the right operations begin with one of `right`."""
    tables = sorted((folder / "msprobe").glob("compare_result_*.csv"))
    if not tables:
        return (
            Answer(0, 0, 0, failure="no table (needs MindSpore)")
            if (folder / "msprobe" / "failed.txt").exists()
            else None
        )
    with tables[-1].open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    if all(row["Cosine"] in ("unsupported", "N/A") for row in rows):
        return Answer(len(rows), 0, 0, failure="no tensor was read")
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
