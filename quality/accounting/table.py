"""The catalogue and the one held out, measured, as tables."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from diagnosing import diagnose

from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis
from quality.accounting import causes, clean_pairs, framework_pairs, msprobe_answers
from quality.accounting.causes import Cause
from quality.accounting.clean_pairs import CleanPair
from quality.accounting.framework_pairs import FrameworkPair
from quality.accounting.held_out import catalogue as held_out
from quality.accounting.held_out.catalogue import HeldOut
from quality.results import Table, how

Pair = Cause | CleanPair | FrameworkPair | HeldOut
CAUSES: tuple[Cause | FrameworkPair, ...] = (*causes.CAUSES, *framework_pairs.CAUSES)
CLEAN: tuple[CleanPair | FrameworkPair, ...] = (*clean_pairs.CLEAN, *framework_pairs.CLEAN)


@dataclass(frozen=True)
class Row:
    """A pair of dumps with what both tools make of it.

    Attributes:
        pair: from a catalogue.
        diagnosis: ours.
        msprobe: the other tool's table; None where it was never asked.
    """

    pair: Pair
    diagnosis: RunDiagnosis
    msprobe: msprobe_answers.Answer | None

    @property
    def is_right(self) -> bool:
        """Whether exactly the planted cause is named; nothing where none was planted."""
        pair = self.pair
        if isinstance(pair, CleanPair) or not pair.expected:
            return not self.diagnosis.faults
        return is_right(pair, self.diagnosis)

    @property
    def differing(self) -> int:
        """Number of operations that differ."""
        kinds = ("fault", "inherited", "rounding", "unaccounted")
        return sum(step.account.kind in kinds for step in self.diagnosis.steps)

    @property
    def named(self) -> str:
        """What is named at fault, the first three; the outcome where nothing is."""
        faults = self.diagnosis.faults[:3]
        return ", ".join(f"{name_of(fault)} ({fault.kind})" for fault in faults) or self.diagnosis.outcome


def name_of(fault: Fault) -> str:
    """The call at fault; a value by its kind, and its name where it has one."""
    if fault.kind in ("parameter", "batch", "constant"):
        return f"{fault.kind} {fault.name}".strip()
    call = fault.step.operation.call
    return f"gradient {call}" if fault.kind == "gradient" else call


def is_right(cause: Cause | FrameworkPair | HeldOut, diagnosis: RunDiagnosis) -> bool:
    """Whether exactly the planted cause is named; several values may be where the cause changed several."""
    names = [name_of(fault) for fault in diagnosis.faults]
    if cause.expected == ("parameter",):
        kinds = {fault.kind for fault in diagnosis.faults}
        return "parameter" in kinds and kinds <= {"parameter", "constant", "batch"}
    return len(names) == 1 and names[0] in cause.expected


def _rows(folder: Path, title: str, pairs: Sequence[Pair]) -> list[Row]:
    """The rows of a catalogue, whose dumps are made below `folder` where they do not lie there."""
    places = [folder / title / str(number) for number in range(len(pairs))]
    dumps = [_dumps(place, pair) for place, pair in zip(places, pairs)]
    msprobe_answers.run((*found, place) for place, found in zip(places, dumps))
    known, found_now, rows = msprobe_answers.stored(), {}, []
    for place, pair, (target, golden) in zip(places, pairs, dumps):
        started = time.monotonic()
        diagnosis = diagnose(target, golden)
        key = f"{title}: {pair.name}, {_network(pair)}"
        answer = msprobe_answers.read(place, _right_names(getattr(pair, "expected", ()), diagnosis))
        if answer is not None:
            found_now[key] = answer
        row = Row(pair, diagnosis, answer or known.get(key))
        rows.append(row)
        sys.stderr.write(f"{key}: {row.is_right} {row.named} {time.monotonic() - started:.0f} s; {row.msprobe}\n")
    msprobe_answers.store({**msprobe_answers.stored(), **found_now})
    return rows


def _dumps(place: Path, pair: Pair) -> tuple[Path, Path]:
    found = [sorted((place / side).rglob("dump.json")) for side in ("target", "golden")]
    return (found[0][0], found[1][0]) if all(found) else pair.write(place)


def _right_names(expected: Sequence[str], diagnosis: RunDiagnosis) -> list[str]:
    """What the names of right rows begin with: the planted calls, or the first call that uses the changed value."""
    calls = [name.rpartition(" ")[2] for name in expected if "." in name and not name.startswith("parameter")]
    return calls or [fault.step.operation.call for fault in diagnosis.faults]


def _cells(row: Row) -> Iterator[str]:
    yield getattr(row.pair, "kind", "") or "clean"
    yield row.pair.name
    yield _network(row.pair)
    yield str(row.differing)
    yield row.named
    yield "yes" if row.is_right else "no"
    yield str(row.msprobe or "not asked")


_HEAD = ("kind", "pair", "network", "records that differ", "named at fault", "right", "msProbe")


def _network(pair: Pair) -> str:
    return f"{pair.framework} {pair.network}" if isinstance(pair, HeldOut) else pair.network


def _counts(planted: Sequence[Row], clean: Sequence[Row]) -> Iterator[str]:
    right, blamed = sum(row.is_right for row in planted), sum(not row.is_right for row in clean)
    yield f"{right} of {len(planted)} planted causes are named exactly, with nothing else beside them."
    yield f"In {blamed} of {len(clean)} pairs in which nothing is wrong, an operation is blamed."
    asked = [row.msprobe for row in planted if row.msprobe is not None and not row.msprobe.failure]
    if asked:
        first, among = sum(answer.place == 1 for answer in asked), sum(answer.place > 0 for answer in asked)
        yield (
            f"msProbe marks the right operation or value first in {first} of {len(asked)}, behind others in "
            f"{among - first}, and not at all in {len(asked) - among}."
        )
    unplanted = [row.msprobe for row in clean if row.msprobe is not None and not row.msprobe.failure]
    if unplanted:
        marked = sum(answer.errors + answer.warnings > 0 for answer in unplanted)
        yield f"Of {len(unplanted)} pairs in which nothing is wrong it marks rows in {marked}."


def _said(name: str, planted: Sequence[Row], clean: Sequence[Row], *, writes: bool) -> None:
    """Print the counts, and write the table where asked to."""
    sys.stdout.write("".join(f"{line}\n" for line in (f"{name}:", *_counts(planted, clean))))
    if writes:
        table = Table.of(name, _HEAD, map(_cells, (*planted, *clean)))
        table.write(how("quality.accounting --write-results", "torch", "mindspore"))


def main() -> int:
    """Measure all, print the counts, and write the tables when asked to."""
    parser = argparse.ArgumentParser(prog="python -m quality.accounting")
    parser.add_argument("--folder", type=Path, help="where dumps are kept and taken from")
    parser.add_argument("--only", choices=("measured", "held-out"), help="one of the two tables")
    parser.add_argument("--write-results", action="store_true", help="write the tables in quality/results")
    arguments = parser.parse_args()
    writes = arguments.write_results
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        if arguments.only != "held-out":
            planted = _rows(folder, "causes", CAUSES)
            clean = _rows(folder, "clean", CLEAN)
            _said("accounting", planted, clean, writes=writes)
        if arguments.only != "measured":
            pairs = [*held_out.CAUSES, *held_out.CLEAN]
            rows = _rows(folder, "held_out", pairs)
            middle = len(held_out.CAUSES)
            _said("accounting_held_out", rows[:middle], rows[middle:], writes=writes)
    return 0
