"""What dumps without tensors tell of two runs, in words that claim no more than that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_msprobe.suites.comparison.accounting.account import Basis
from pytest_msprobe.suites.comparison.accounting.flow import Step

_EQUAL = {
    "fingerprints": "Every tensor that was compared is equal, bit by bit: all fingerprints are.",
    "checksums": "Every tensor that was compared is equal, bit by bit: all checksums are.",
    "statistics": "All statistics that were compared are equal, which equal bits would make and others may.",
    "none": "No tensor was compared.",
}
_ORDER: tuple[Basis, ...] = ("tensors", "statistics", "checksums", "fingerprints", "none")
#: Of operations that an origin reaches, behind their number.
REACHED: dict[Basis, str] = {
    "statistics": "of those that get it differ by more than they may, too",
    "fingerprints": "of those that get it differ by more than they may, too",
    "checksums": "of those that get it differ, too",
}
HOW_TO_TELL = (
    'Without tensors it cannot be told whether the operation is wrong: dump both runs with "task": "tensor", at least '
    "this call"
)


def basis_of(steps: Iterable[Step]) -> Basis:
    """What the content of values is known by throughout: the weakest of the records."""
    found = {step.account.basis for step in steps}
    return next((basis for basis in _ORDER if basis in found), "none")


def differs(steps: Iterable[Step]) -> bool:
    """Whether a value differs."""
    return any(key.differs for step in steps for key in step.account.keys)


def explains(steps: Iterable[Step]) -> bool:
    """Whether all that differs is within what a noise run differs by."""
    return all(
        step.account.is_noise and not any(key.is_beyond for key in step.account.keys)
        for step in steps
        if any(key.differs for key in step.account.keys)
    )


def first_bits(steps: Sequence[Step]) -> tuple[Step, str] | None:
    """(record, place) of the first value in the order of execution whose fingerprint or checksum differs.

    Nothing before it differs, so that it is the first in the data flow as well.
    """
    for step in steps:
        for key in step.account.keys:
            if key.differs and key.target[0] in "fm" and step.account.place >= 0:
                return step, key.path
    return None


def without_fault(steps: Sequence[Step], basis: Basis) -> str:
    """What is said when nothing differs by more than it may."""
    count = sum(any(key.differs for key in step.account.keys) for step in steps if not step.operation.is_cell)
    if not differs(steps):
        return _EQUAL[basis]
    if explains(steps):
        return f"{count} operations differ, none by more than the noise run allows: all of it is what rounding does."
    if any(key.is_beyond for step in steps for key in step.account.keys):
        return f"{count} operations differ, some by more than they may, and none of them is the first that does."
    return (
        f"{count} operations differ, none by more than the limit of its dtype; whether that is rounding a noise run "
        "tells (--msprobe-noise)."
    )


def lead(basis: Basis) -> str:
    """How origins are introduced."""
    return "First that differs" if basis == "checksums" else "First that differs by more than it may"
