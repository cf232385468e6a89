"""The gradient monitor in a folder of its own: its configuration, and what it wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_collector.configuration import Configuration
from msprobe_collector.configuration.reader import read_configuration


def configuration(folder: Path, **keys: Any) -> Configuration:
    file = folder / "config.json"
    probe = {key: keys.pop(key) for key in ("grad_level", "param_list", "bounds") if key in keys}
    file.write_text(json.dumps({"task": "grad_probe", "dump_path": str(folder / "out"), "grad_probe": probe, **keys}))
    return read_configuration(file)


def table(folder: Path, step: int, rank: int = 0) -> list[dict[str, str]]:
    with open(folder / "out" / f"rank{rank}" / f"grad_summary_{step}.csv", newline="") as file:
        return list(csv.DictReader(file))


def signs(folder: Path, step: int, name: str) -> Any:
    return np.load(folder / "out" / "rank0" / f"step{step}" / f"{name}.npy", allow_pickle=False)


def check_two_steps(tmp_path: Path) -> None:
    """Two steps of parameters `a` and `b` with gradients [0.5, -2, 0] and [[3]] are in their files, and no third."""
    for step in (0, 1):
        first, second = table(tmp_path, step)
        assert first["param_name"] == "a"
        assert (float(first["max"]), float(first["min"]), float(first["norm"])) == (0.5, -2.0, 4.25**0.5)
        assert (first["shape"], first["nan"], first["inf"]) == ("[3]", "0", "0")
        assert (second["param_name"], second["shape"], float(second["norm"])) == ("b", "[1, 1]", 3.0)
        assert signs(tmp_path, step, "a").tolist() == [True, False, False]
        assert signs(tmp_path, step, "b").dtype == bool
    assert not (tmp_path / "out" / "rank0" / "grad_summary_2.csv").exists(), "stop() leaves the optimizer alone"
