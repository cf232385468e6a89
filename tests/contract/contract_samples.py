"""One small input for every suite: files, command line, and what is in them, counted here and not by the plugin.

A suite passes the contract with a line in `SAMPLES`; one that no package has here is that of docs/new_suite.md.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from dump_builder import DumpBuilder
from gradient_runs import write_step

A = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
BAD = np.array([1.0, np.nan, 2.0], np.float32)

#: References in NumPy, so that the pre-check of the sample needs no framework.
REFERENCES = """
import numpy as np
from pytest_msprobe.api import Reference

KNOWN = {
    "neg": Reference(np.negative, lambda incoming, x: [-incoming[0]]),
    "abs": Reference(np.abs, lambda incoming, x: [incoming[0] * np.sign(x)]),
    "relu": Reference(lambda x: np.maximum(x, 0)),
    "exp": Reference(np.exp),
}

def pytest_msprobe_reference(api):
    return KNOWN.get(api.short)
"""

#: A device in NumPy for the suite that runs calls: one of them now and then gives a result with another bit.
DEVICE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from fakes.engine import FakeEngine
from pytest_msprobe.engines import selection

class Device(FakeEngine):
    def forward(self, call, *, differentiate):
        self.fault = "flips a bit now and then" if call.api.short == "exp" else "none"
        return super().forward(call, differentiate=differentiate)

selection._make_device = lambda specification: Device()
"""


@dataclass(frozen=True)
class Sample:
    """What one suite gets.

    Attributes:
        build: writes the files below a folder.
        arguments: of pytest, in that folder.
        count: how many records the written files hold for this suite.
        tables: patterns of the suite's own result files, whose rows a resumed run must leave as an uninterrupted one.
        types: API types whose marker `-m` may name.
        accepts: arguments with which gaps in the sample are not a fault of the run.
        conftest: hooks that the suite needs for these files.
        benchmarks: frameworks that may be loaded to compute calls again.
    """

    build: Callable[[Path], None]
    arguments: tuple[str, ...]
    count: Callable[[Path], int] = lambda folder: len(_records(folder))
    tables: tuple[str, ...] = ()
    types: tuple[str, ...] = ("Mint", "Functional", "Tensor")
    accepts: tuple[str, ...] = ()
    conftest: str = ""
    benchmarks: tuple[str, ...] = ()


def _rank(folder: Path, *, calls: int) -> DumpBuilder:
    builder = DumpBuilder(folder, fingerprints=True)
    for number in range(calls):
        builder.call(f"Mint.neg.{number}", [A], [-A], incoming=[A], gradients=[-A])
    return builder


def _step(
    folder: Path, *, fault: float = 0.0, cell_fault: float = 0.0, unmatched: bool = False, overflow: bool = False
) -> None:
    """Two ranks of a step with API calls of three types, a Cell, and a record that has no valid name.

    Args:
        folder: of the step.
        fault: what is added to the output of `Mint.exp.0`.
        cell_fault: what is added to the output of the Cell.
        unmatched: whether there is a call `Custom.alloc.0`, which no benchmark knows.
        overflow: whether that call makes a NaN, which `Mint.add.0` passes on.
    """
    builder = _rank(folder / "rank0", calls=4)
    builder.call("Functional.relu.0", [A], [A])
    builder.call("Tensor.abs.0", [A], [A], incoming=[A], gradients=[A])
    builder.call("Mint.exp.0", [A], [np.exp(A) + np.float32(fault)])
    if unmatched or overflow:
        builder.call("Custom.alloc.0", [A], [BAD if overflow else A])
    if overflow:
        builder.call("Mint.add.0", [BAD, 1.0], [BAD])
    for direction, values in (("forward", {"input_args": [A], "input_kwargs": {}}), ("backward", {"input": [A]})):
        name = f"Cell.head.Dense.{direction}.0"
        entry = {key: [builder.tensor(A, f"{name}.{key}.npy")] if value else {} for key, value in values.items()}
        output = -A + np.float32(cell_fault if direction == "forward" else 0)
        builder.records[name] = {**entry, "output": [builder.tensor(output, f"{name}.output.0.npy")]}
    builder.records["nonsense"] = {"input_args": [], "input_kwargs": {}, "output": []}
    builder.write()
    _rank(folder / "rank1", calls=1).write()


def _step_with_fault(folder: Path) -> None:
    _step(folder / "step0", fault=1.0, unmatched=True)


def _comparison(folder: Path) -> None:
    _step(folder / "target" / "step0", fault=1.0, unmatched=True)
    _step(folder / "golden" / "step0")


def _overflow(folder: Path) -> None:
    _step(folder / "step0", overflow=True)


def _sharded(folder: Path) -> None:
    _step(folder / "target" / "step0", cell_fault=1.0)
    _rank(folder / "target" / "step0" / "rank1", calls=4).write()
    _step(folder / "logical" / "step0", unmatched=True)
    shutil.rmtree(folder / "logical" / "step0" / "rank1")


#: Laws that a rank has checked, by what they are about.
_WATCHED = {
    "AdamW": ("step-counter", "update-formula"),
    "Net": ("ties-kept",),
    "clipping": ("clip-norm", "scale-removed"),
    "SGD": ("storage-kept", "moments-formula"),
}


def _laws(folder: Path) -> None:
    """Two ranks, the last one with a finding, and laws that could not be checked."""
    for rank in range(2):
        lines: list[dict[str, object]] = [{"kind": "run", "schema": 1, "rank": rank, "framework": "pytorch"}]
        if rank == 1:
            lines.append(
                {"kind": "finding", "law": "step-counter", "about": "AdamW", "parameter": "head.weight", "others": [],
                 "other_count": 0, "step": 3, "size": None, "message": "its counter goes from 3 to 5",
                 "source": "train.py:12, in main: optimizer.step()"}
            )  # fmt: skip
        for about, laws in _WATCHED.items():
            for law in laws:
                checks = 0 if law == "ties-kept" else 5
                findings = int((rank, about, law) == (1, "AdamW", "step-counter"))
                reason = "" if checks else "the model has no tied parameters"
                entry = {"kind": "checked", "law": law, "about": about, "checks": checks, "findings": findings}
                lines.append({**entry, "unchecked": reason})
        path = folder / "watched" / f"rank{rank}" / "laws.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def _gradients(folder: Path) -> None:
    rising = np.arange(1.0, 101.0)
    for side in ("a", "b"):
        for step in range(4):
            wrong = np.where(np.arange(100) < 20, -1.0, 1.0) if (side, step) == ("a", 2) else 1.0
            write_step(folder / side, step, {"w": rising * wrong, "v": rising})
    for side in ("a", "b"):
        write_step(folder / side, 0, {"w": rising}, rank=1)


def _records(folder: Path) -> list[str]:
    found: list[str] = []
    for path in sorted(folder.rglob("dump.json")):
        found += json.loads(path.read_text(encoding="utf-8"))["data"]
    return found


def _count_api_records(folder: Path) -> int:
    """The pre-check leaves the records of Cells to others."""
    return sum(not name.startswith("Cell.") for name in _records(folder))


def _count_with_step(folder: Path) -> int:
    return len(_records(folder)) + 1


def _count_target_records(folder: Path) -> int:
    """Every record of the target; the golden dump of the sample has none that the target lacks."""
    target, golden = _records(folder / "target"), _records(folder / "golden")
    assert not Counter(golden) - Counter(target)
    return len(target)


def _count_logical_records(folder: Path) -> int:
    return len(_records(folder / "logical"))


def _count_laws(folder: Path) -> int:
    """Each law of each rank, and two laws of all ranks."""
    checked = [line for path in folder.rglob("laws.jsonl") for line in path.read_text(encoding="utf-8").splitlines()]
    return sum(json.loads(line)["kind"] == "checked" for line in checked) + 2


def _count_gradients(folder: Path) -> int:
    count = 0
    for path in (folder / "a").rglob("grad_summary_*.csv"):
        with path.open(encoding="utf-8") as file:
            count += len(list(csv.DictReader(file)))
    return count


SAMPLES: dict[str, Sample] = {
    "precheck": Sample(
        _step_with_fault,
        ("--msprobe-dump=step0",),
        _count_api_records,
        ("accuracy_checking_result_*.csv", "accuracy_checking_details_*.csv"),
        types=("Mint", "Functional", "Tensor"),
        conftest=REFERENCES,
    ),
    "comparison": Sample(
        _comparison,
        ("--msprobe-dump=target", "--msprobe-golden=golden"),
        _count_target_records,
        ("compare_result_rank0_*.csv", "compare_result_rank1_*.csv"),
        types=("Mint", "Functional", "Tensor", "Cell"),
        accepts=("--msprobe-accept=unmatched",),
        benchmarks=("torch",),
    ),
    "overflow": Sample(
        _overflow,
        ("--msprobe-dump=step0", "--msprobe-suite=overflow"),
        _count_with_step,
        ("overflow_result_*.csv",),
        types=("Mint", "Functional", "Tensor", "Cell"),
    ),
    "gradients": Sample(
        _gradients,
        ("--msprobe-gradients=a", "--msprobe-golden=b"),
        _count_gradients,
        ("**/rank0/similarities.csv",),
        types=("Gradient",),
    ),
    "repeat": Sample(
        _step_with_fault,
        ("--msprobe-dump=step0", "--msprobe-suite=repeat", "--msprobe-batch"),
        _count_api_records,
        ("repeat_result_*.csv",),
        conftest=DEVICE,
    ),
    "sharded": Sample(
        _sharded,
        ("--msprobe-dump=target", "--msprobe-logical=logical"),
        _count_logical_records,
        ("sharded_result_*.csv",),
        types=("Mint", "Functional", "Tensor", "Cell"),
    ),
    "laws": Sample(
        _laws,
        ("--msprobe-dump=watched",),
        _count_laws,
        ("laws_result_*.csv",),
        types=(),
    ),
    "stranger": Sample(_step_with_fault, ("--msprobe-dump=step0", "--msprobe-suite=stranger")),
}
