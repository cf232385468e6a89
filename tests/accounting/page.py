"""The table of docs/accounting.md."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from accounting import causes, clean_pairs, framework_pairs
from accounting.causes import Cause
from accounting.clean_pairs import CleanPair
from accounting.diagnosing import diagnose
from accounting.framework_pairs import FrameworkPair

from pytest_msprobe.suites.comparison.accounting.diagnosis import Diagnosis
from pytest_msprobe.suites.comparison.accounting.faults import Fault

CAUSES: tuple[Cause | FrameworkPair, ...] = (*causes.CAUSES, *framework_pairs.CAUSES)
CLEAN: tuple[CleanPair | FrameworkPair, ...] = (*clean_pairs.CLEAN, *framework_pairs.CLEAN)
PAGE = Path(__file__).parents[2] / "docs" / "accounting.md"
_BEGIN, _END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def name_of(fault: Fault) -> str:
    """The call at fault; a value by its kind, and its name where it has one."""
    if fault.kind in ("parameter", "batch", "constant"):
        return f"{fault.kind} {fault.name}".strip()
    call = fault.step.operation.call
    return f"gradient {call}" if fault.kind == "gradient" else call


def is_right(cause: Cause | FrameworkPair, diagnosis: Diagnosis) -> bool:
    """Whether exactly the planted cause is named; several values may be where the cause changed several."""
    names = [name_of(fault) for fault in diagnosis.faults]
    if cause.expected == ("parameter",):
        kinds = {fault.kind for fault in diagnosis.faults}
        return "parameter" in kinds and kinds <= {"parameter", "constant", "batch"}
    return len(names) == 1 and names[0] in cause.expected


def measured(folder: Path) -> Iterator[str]:
    """The lines of the page, one measurement at a time."""
    rows, right = [], 0
    for number, cause in enumerate(CAUSES):
        diagnosis, seconds = _run(cause, folder / f"cause{number}")
        is_named = is_right(cause, diagnosis)
        right += is_named
        shown = ", ".join(f"`{name_of(fault)}` ({fault.kind})" for fault in diagnosis.faults[:3]) or diagnosis.outcome
        differing = sum(diagnosis.counts[kind] for kind in ("fault", "inherited", "rounding", "unaccounted"))
        rows.append(f"| {cause.kind} | {cause.name} | {cause.network} | {differing} | {shown} | {_mark(is_named)} |")
        _say(f"{cause.name}: {is_named} {shown} {seconds:.0f} s")
    blamed, clean = 0, []
    for number, pair in enumerate(CLEAN):
        diagnosis, seconds = _run(pair, folder / f"clean{number}")
        blamed += len(diagnosis.faults)
        last = diagnosis.last
        far = f"{last[2]:.2g}" if last is not None else ""
        differing = sum(diagnosis.counts[kind] for kind in ("fault", "inherited", "rounding", "unaccounted"))
        clean.append(f"| {pair.name} | {differing} | {far} | {diagnosis.outcome} | {len(diagnosis.faults)} |")
        _say(f"{pair.name}: {diagnosis.outcome} {seconds:.0f} s")
    yield f"{right} of {len(CAUSES)} planted causes are named exactly, with nothing else beside them."
    yield f"In {len(CLEAN)} pairs in which nothing is wrong, {blamed} operations are blamed."
    yield ""
    yield "| kind | planted in the target | network | operations that differ | named at fault | exactly right |"
    yield "|---|---|---|---|---|---|"
    yield from rows
    yield ""
    yield "| nothing is wrong | operations that differ | distance of the last output | outcome | blamed |"
    yield "|---|---|---|---|---|"
    yield from clean


def main() -> int:
    """Measure all, and put the table into the page."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        lines = [*measured(Path(folder))]
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    table = "\n".join(lines)
    PAGE.write_text(f"{before}{_BEGIN}{table}\n{_END}{after}", encoding="utf-8")
    return 0


def _run(pair: Cause | CleanPair | FrameworkPair, folder: Path) -> tuple[Diagnosis, float]:
    started = time.monotonic()
    target, golden = pair.write(folder)
    return diagnose(target, golden), time.monotonic() - started


def _mark(is_named: bool) -> str:
    return "yes" if is_named else "**no**"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
