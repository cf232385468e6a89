"""Localise, then prove: sketches of a step, then the tensors of the calls that they suspect.

For each planted cause both runs are made three times: with sketches, with the tensors of what the diagnosis of the
sketches suspects, and, to compare with, with all tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from diagnosing import diagnose

from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis
from pytest_msprobe.suites.comparison.accounting.next_collection import next_collections
from quality.sketches.planted import Keys

SKETCHES: Keys = {"task": "statistics", "statistics": {"summary_mode": "sketch"}}
MOST_SHARE = 0.02
#: (folder, keys of the target, keys of the golden run) -> their dumps.
Write = Callable[[Path, Keys, Keys], tuple[Path, Path]]
#: Whether a diagnosis names exactly what was planted.
Judge = Callable[[RunDiagnosis], bool]


@dataclass(frozen=True)
class Answer:
    """What became of one cause.

    Attributes:
        name: of the cause.
        by_sketches: first record that they suspect.
        by_tensors: first record that the accounting of all tensors blames.
        suspects: calls whose tensors were collected.
        named: what the tensors of the suspects show to be at fault.
        is_exact: whether that is what was planted, and nothing else.
        is_exact_whole: the same of all tensors.
        size: bytes of the tensors of the suspects, and of all tensors; target and golden run together.
    """

    name: str
    by_sketches: str
    by_tensors: str
    suspects: tuple[str, ...]
    named: tuple[str, ...]
    is_exact: bool
    is_exact_whole: bool
    size: tuple[int, int]

    @property
    def share(self) -> float:
        """Of the bytes of all tensors."""
        return self.size[0] / self.size[1]

    @property
    def is_same_first(self) -> bool:
        """Whether sketches lead to the record that tensors lead to."""
        return self.by_sketches == self.by_tensors

    def __str__(self) -> str:
        """One row of the table."""
        first = self.by_sketches if self.is_same_first else f"{self.by_sketches} (all tensors: {self.by_tensors})"
        exact = "yes" if self.is_exact else "**no**" if self.is_exact_whole else "no, nor from all tensors"
        return (
            f"| {self.name} | {first} | {len(self.suspects)} | {', '.join(self.named) or 'nothing'} | {exact} "
            f"| {100 * self.share:.2f} % |"
        )


HEAD = (
    "| cause | first suspect | calls | at fault, by their tensors | exact | share of all bytes |",
    "|---|---|---|---|---|---|",
)


def localised(
    name: str, write: Write, is_right: Judge, named: Callable[[RunDiagnosis], list[str]], folder: Path
) -> Answer:
    """Play all of it for one cause, below `folder`."""
    sketched = diagnose(*write(folder / "sketches", SKETCHES, SKETCHES))
    whole = write(folder / "tensors", {}, {})
    accounted = diagnose(*whole)
    all_bytes, small_bytes, shown, is_exact = _bytes(whole), 0, ["nothing was suspected"], False
    if (proof := next(next_collections([sketched]), None)) is not None:
        small = write(folder / "suspects", msgspec.to_builtins(proof.target), msgspec.to_builtins(proof.golden))
        found = diagnose(*small)
        is_exact, shown, small_bytes = is_right(found), named(found), _bytes(small)
    return Answer(
        name,
        first_of(sketched),
        first_of(accounted),
        tuple(proof.calls) if proof is not None else (),
        tuple(shown),
        is_exact,
        is_right(accounted),
        (small_bytes, all_bytes),
    )


def first_of(diagnosis: RunDiagnosis) -> str:
    """Record of the first of what is at fault, or suspected; the outcome where nothing is."""
    faults = [*(fault for fault in diagnosis.faults if not fault.after), *diagnosis.unknown]
    return faults[0].step.record if faults else diagnosis.outcome


def _bytes(dumps: Sequence[Path]) -> int:
    return sum(
        os.path.getsize(file)
        for dump in dumps
        for file in (dump.parent / "dump_tensor_data").glob("*")
        if file.is_file()
    )


def summary(answers: Sequence[Answer]) -> Iterator[str]:
    """Counts."""
    count = len(answers)
    shares = sorted(answer.share for answer in answers)
    yield f"the same first record as from tensors: {sum(answer.is_same_first for answer in answers)} of {count}"
    yield f"exactly named from the tensors of the suspects: {sum(answer.is_exact for answer in answers)} of {count}"
    yield f"exactly named from all tensors: {sum(answer.is_exact_whole for answer in answers)} of {count}"
    small, whole = (sum(answer.size[of] for answer in answers) for of in (0, 1))
    most = sum(share <= MOST_SHARE for share in shares)
    yield (
        f"share of the bytes of all tensors: {100 * small / whole:.2f} % together, median "
        f"{100 * shares[count // 2]:.2f} %, most {100 * shares[-1]:.2f} %, at most {100 * MOST_SHARE:g} % in {most}"
    )
