"""The names that are in no table, as records through whole runs of the suites: nothing may happen but reports."""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import islice
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import pytest
from audit_watch import Watch

from quality.operator_audit.names import refused_records

_BATCH = 2_000
#: Options of each run, and the dump that it reads. In precheck a reference of the user's fails every record, so that
#: a reproducer is asked for; in overflow every record made an Inf, so that its call is tried again.
RUNS = {
    "precheck": ("finite", ("--msprobe-device=recorded", "--msprobe-reproducers=out/reproducers")),
    "overflow": ("infinite", ("--msprobe-suite=overflow",)),
    "comparison": ("finite", ("--msprobe-golden=golden/dump.json",)),
}


#: Events of pytest itself: its variables, a name for JUnit, captured output, code that it makes.
_OF_PYTEST = re.compile(
    r"os\.(?:putenv|unsetenv) \(b'PYTEST_|socket\.gethostname |tempfile\.|exec |compile |(?:code|function)\.__new__ "
    rf"|open \((?:\d+|'/dev/null'|'{re.escape(tempfile.gettempdir())}'),"
)


class _Reference:
    """A benchmark for every record."""

    def pytest_msprobe_reference(self, api: object) -> Any:
        return lambda *arguments, **keywords: np.full((2, 2), 7.0)


def try_in_runs(folder: Path, *, every: int, is_once: bool = False) -> Counter[str]:
    """Counts of what was tried and of what happened. Prints what should not be.

    Every n-th name is tried under every API type, or, with `is_once`, under one that changes from name to name.
    """
    watch = Watch()
    counts: Counter[str] = Counter()
    canary = folder / "canary"
    previous = os.getcwd()
    for framework in ("mindspore", "pytorch"):
        records = [*islice(_in_turn(framework) if is_once else refused_records(framework), 0, None, every)]
        counts["names under an API type"] += len(records)
        _run_all(folder / "first", framework, records[:3], str(canary), Watch())  # loads what a run needs
        for start in range(0, len(records), _BATCH):
            batch = records[start : start + _BATCH]
            try:
                found, seen = _run_all(folder / "run", framework, batch, str(canary), watch)
            finally:
                os.chdir(previous)
            counts.update(found)
            print("".join(seen), end="")
    counts["files made"] += canary.exists()
    return counts


def _in_turn(framework: str) -> Iterator[tuple[str, str]]:
    """Each name under one of its API types."""
    types: dict[str, list[str]] = {}
    for api_type, name in refused_records(framework):
        types.setdefault(name, []).append(api_type)
    for number, (name, found) in enumerate(types.items()):
        yield found[number % len(found)], name


def _run_all(
    folder: Path, framework: str, records: Sequence[tuple[str, str]], canary: str, watch: Watch
) -> tuple[Counter[str], list[str]]:
    """Counts, and what should not be."""
    counts: Counter[str] = Counter()
    seen = []
    for suite, (values, options) in RUNS.items():
        rmtree(folder, ignore_errors=True)
        _write(folder / "target", framework, records, canary, np.inf if values == "infinite" else 0.5)
        copytree(folder / "target", folder / "golden")
        (folder / "pytest.ini").write_text("[pytest]\n")
        os.chdir(folder)
        fixed = ("-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--rootdir=.")
        files = ("--msprobe-out=out", "--msprobe-jsonl=out/rows.jsonl", "--msprobe-dump=target/dump.json")
        text = io.StringIO()
        with redirect_stdout(text), redirect_stderr(text), watch.armed():
            code = pytest.main([*fixed, *files, *options], plugins=[_Reference()])
        lines = Path("out/rows.jsonl").read_text(encoding="utf-8").splitlines()
        rows = {row["node_id"]: row["status"] for row in map(json.loads, lines) if row["node_id"].endswith("::forward")}
        events = [event for event in watch.take() if not _is_own(event, folder)]
        counts.update(f"{suite} {status}" for status in rows.values())
        counts["records lost"] += len(records) - len(rows)
        counts["reproducers"] += len([*folder.glob("out/reproducers/**/*.py")])
        if code not in (0, 1, 5) or "INTERNALERROR" in text.getvalue():
            events.append(f"exit code {code}\n{text.getvalue()[-2000:]}")
        counts["events"] += len(events)
        seen += [f"{suite}: {event}\n" for event in events]
    return counts, seen


def _is_own(event: str, folder: Path) -> bool:
    """Whether pytest or a report did it: files of the run, code of pytest's own, a folder for temporary files."""
    if "canary" in event:
        return False
    return bool(_OF_PYTEST.match(event)) or f"'{folder}" in event or "'out" in event


def _write(folder: Path, framework: str, records: Sequence[tuple[str, str]], canary: str, made: float) -> None:
    """A dump with a record per name, called with a command, a path, an integer or a tensor in turn."""
    tensors = folder / "dump_tensor_data"
    tensors.mkdir(parents=True)
    np.save(tensors / "in.npy", np.full((2, 2), 0.5, np.float32))
    np.save(tensors / "out.npy", np.full((2, 2), made, np.float32))
    header = {"task": "tensor", "level": "L1", "framework": framework, "dump_data_dir": None}
    data = dict(_entries(records, canary, made))
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}), encoding="utf-8")


def _entries(records: Sequence[tuple[str, str]], canary: str, made: float) -> Iterator[tuple[str, Any]]:
    known = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2, 2]}
    tensor = {**known, "Max": 0.5, "Min": 0.5, "Mean": 0.5, "Norm": 1, "data_name": "in.npy"}
    output = {**known, **dict.fromkeys(("Max", "Min", "Mean", "Norm"), made), "data_name": "out.npy"}
    text = {"type": "str", "value": f"touch {canary}"}
    path = {"type": "str", "value": canary}
    three = {"type": "int", "value": 3}
    false = {"type": "bool", "value": False}
    given = (([text], {}), ([path, tensor], {"weights_only": false}), ([three], {}), ([tensor, path], {"f": path}))
    for number, (api_type, name) in enumerate(records):
        arguments, keywords = given[number % len(given)]
        record = {"input_args": arguments, "input_kwargs": keywords, "output": [output]}
        yield f"{api_type}.{name}.0.forward", record
