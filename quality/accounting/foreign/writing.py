"""Writes the dumps of pairs below a folder, and what may be named for each into index.json there."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from quality.accounting.foreign.pairs import Pair

INDEX = "index.json"

#: dump.json of a run of (network, way, folder), and the calls that it marked by place.
Run = Callable[[str, Any, Path], tuple[Path, Mapping[str, list[str]]]]


def run_torch(network: str, way: Any, folder: Path, **keys: Any) -> tuple[Path, Mapping[str, list[str]]]:
    """See `Run`; collected with these keys of config.json besides."""
    from quality.accounting.foreign.fourth_packages import FOURTH_PACKAGES
    from quality.accounting.foreign.fourth_scripts import FOURTH_SCRIPTS
    from quality.accounting.foreign.late_packages import LATE_PACKAGES
    from quality.accounting.foreign.late_scripts import LATE_SCRIPTS
    from quality.accounting.foreign.packages import PACKAGES
    from quality.accounting.foreign.precisions import PRECISIONS
    from quality.accounting.foreign.scripts import SCRIPTS
    from quality.accounting.foreign.training import collect

    known = {**SCRIPTS, **PACKAGES, **PRECISIONS, **LATE_SCRIPTS, **LATE_PACKAGES, **FOURTH_SCRIPTS, **FOURTH_PACKAGES}
    path, watch = collect(known[network], way, folder, **keys)
    return path, watch.marked


def run_mindspore(network: str, way: Any, folder: Path) -> tuple[Path, Mapping[str, list[str]]]:
    """See `Run`."""
    from quality.accounting.foreign.cells import collect

    path, watch = collect(network, way, folder)
    return path, watch.marked


_RUNS: dict[str, Run] = {"pytorch": run_torch, "mindspore": run_mindspore}


class Pairs:
    """The pairs in a folder; those that lie there already are not written again."""

    def __init__(self, folder: Path) -> None:
        """Those of `folder`, which need not exist."""
        self.folder = folder
        path = folder / INDEX
        self._index: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        """What the index has of a pair or run."""
        found: dict[str, Any] = self._index[name]
        return found

    def write(self, pairs: Iterable[Pair]) -> list[str]:
        """Write what is missing; returns a line for each pair that could not be."""
        self.folder.mkdir(parents=True, exist_ok=True)
        failed = []
        for pair in pairs:
            if pair.name in self._index:
                continue
            try:
                self._index[pair.name] = self._written(pair)
            except Exception as error:  # one pair must not end the others
                failed.append(f"{pair.name}: {type(error).__name__}: {error}")
                sys.stderr.write(f"{failed[-1]}\n")
                continue
            (self.folder / INDEX).write_text(json.dumps(self._index, indent=1), encoding="utf-8")
        return failed

    def _written(self, pair: Pair) -> dict[str, Any]:
        golden = self._run(f"golden {pair.framework} {pair.network} {pair.golden}", pair, pair.golden)
        target = self._run(f"target {pair.name}", pair, pair.target)
        return {
            "kind": pair.kind,
            "framework": pair.framework,
            "network": pair.network,
            "half": pair.half,
            "answer": pair.answer,
            "expected": pair.accepted(target["marks"], golden["marks"]),
            "target": target["dump"],
            "golden": golden["dump"],
        }

    def _run(self, name: str, pair: Pair, way: Any) -> dict[str, Any]:
        if name in self._index:
            return self[name]
        folder = self.folder / hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:12]
        shutil.rmtree(folder, ignore_errors=True)
        path, marks = _RUNS[pair.framework](pair.network, way, folder)
        found = {"dump": str(path.relative_to(self.folder)), "marks": dict(marks)}
        if name.startswith("golden"):
            self._index[name] = found
        return found
