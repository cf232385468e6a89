"""Dumps of the pairs on disk: each run once, and an index of what belongs together."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quality.accounting.other_tool.pairs import ToolPair
from quality.accounting.other_tool.values import Run
from tools import ROOT, clone_environment

#: Names the Python that has the existing tool.
VARIABLE = "MSPROBE_REFERENCE_PYTHON"
_SCRIPTS = {"pytorch": "torch_step", "mindspore": "mindspore_step"}


def _framework(pair: ToolPair, side: str) -> str:
    return {"target": "mindspore", "golden": "pytorch"}[side] if pair.framework == "frameworks" else pair.framework


def place(folder: Path, framework: str, run: Run) -> Path:
    """Where the dump of a run lies."""
    told = json.dumps([framework, asdict(run)], sort_keys=True)
    return folder / "dumps" / f"{framework}_{run.network}_{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def dump_of(folder: Path, framework: str, run: Run) -> Path | None:
    """Its dump.json, None where it is not written."""
    return _written(place(folder, framework, run))


def _written(where: Path) -> Path | None:
    found = sorted(where.glob("step0/*/dump.json"))
    return found[0] if found and not (where / "failed.txt").exists() else None


def dumps_of(folder: Path, pair: ToolPair) -> tuple[Path, Path] | None:
    """(target, golden) dump.json of a pair, None where one of them is not written."""
    target = dump_of(folder, _framework(pair, "target"), pair.target)
    golden = dump_of(folder, _framework(pair, "golden"), pair.golden)
    return (target, golden) if target is not None and golden is not None else None


def write(folder: Path, pairs: Sequence[ToolPair], all_pairs: Sequence[ToolPair]) -> list[str]:
    """Write what is not there yet of `pairs`, and the index of all pairs whose dumps lie in the folder.

    Returns:
        What could not be written, and why: one line each.
    """
    waiting: dict[tuple[str, str], dict[str, Run]] = {}
    for pair in pairs:
        for side, run in (("target", pair.target), ("golden", pair.golden)):
            framework = _framework(pair, side)
            if dump_of(folder, framework, run) is None:
                where = str(place(folder, framework, run))
                waiting.setdefault((framework, run.tool), {})[where] = run
    failed = []
    for (framework, tool), runs in waiting.items():
        failed += _run(folder, framework, tool, runs)
    _write_index(folder, all_pairs)
    return failed


def _run(folder: Path, framework: str, tool: str, runs: dict[str, Run]) -> list[str]:
    python = sys.executable if tool == "ours" else os.environ.get(VARIABLE, "")
    if not python:
        return [f"{len(runs)} runs of {framework}: {VARIABLE} names no Python with the existing tool"]
    folder.mkdir(parents=True, exist_ok=True)
    for where in runs:
        shutil.rmtree(where, ignore_errors=True)
    jobs = folder / "jobs.json"
    jobs.write_text(json.dumps([[where, asdict(run)] for where, run in runs.items()]), encoding="utf-8")
    environment = clone_environment(OMP_NUM_THREADS="1")
    if tool != "ours":
        environment["PYTHONPATH"] = str(ROOT)
    command = [python, "-m", f"{__package__}.{_SCRIPTS[framework]}", str(jobs)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    failed = [_why(where) for where in runs if _written(Path(where)) is None]
    if failed:
        failed.append(f"{framework}: ended with {done.returncode}: {done.stderr[-500:]}")
    return failed


def _why(where: str) -> str:
    told = Path(where, "failed.txt")
    last = told.read_text(encoding="utf-8").strip().splitlines()[-1] if told.exists() else "no dump.json"
    return f"{where}: {last}"


def _write_index(folder: Path, pairs: Iterable[ToolPair]) -> None:
    index = []
    for pair in pairs:
        if (dumps := dumps_of(folder, pair)) is not None:
            target, golden = (str(dump.relative_to(folder)) for dump in dumps)
            index.append({**asdict(pair), "half": pair.half, "target_dump": target, "golden_dump": golden})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def read(folder: Path) -> list[tuple[ToolPair, Path, Path]]:
    """(pair, target dump.json, golden dump.json) of an index; the answers that are right are those of the index."""
    found = []
    index: list[dict[str, Any]] = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    for entry in index:
        entry.pop("half")
        target, golden = folder / entry.pop("target_dump"), folder / entry.pop("golden_dump")
        runs = {side: Run(**entry.pop(side)) for side in ("target", "golden")}
        answers = {key: tuple(entry.pop(key)) for key in ("expected", "also")}
        found.append((ToolPair(**entry, **answers, **runs), target, golden))
    return found
