"""What is found about one gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pytest_msprobe.suites.gradients.signs import SignAgreement
from pytest_msprobe.verdicts import Status

#: What a rule finds. A gradient that could not be judged (`unmatched`, `unreadable`) is an error of another kind.
PROBLEMS = ("similarity", "bits", "nonfinite", "zero", "turbulence", "collapse")
Kind = Literal[
    "", "similarity", "bits", "nonfinite", "zero", "turbulence", "collapse", "unmatched", "unreadable", "unjudged"
]


@dataclass(frozen=True, slots=True)
class GradientResult:
    """The verdict on one gradient.

    Attributes:
        rank, step, parameter: which gradient.
        order: place of the parameter in the optimizer, from 0; the last one stands nearest the loss.
        status: `pass`, `error` or `skip`.
        kind: what rule was broken, or why it was not judged; "" for a pass.
        message: one line; for a pass the figures.
        shape: of the gradient.
        agreement: of its signs with those of the golden run; None where they were not compared.
        norm: of the gradient; None where it could not be read.
        details: more lines for a person who reads about a failure.
    """

    rank: int
    step: int
    parameter: str
    order: int
    status: Status
    kind: Kind = ""
    message: str = ""
    shape: tuple[int, ...] = ()
    agreement: SignAgreement | None = None
    norm: float | None = None
    details: tuple[str, ...] = ()

    @property
    def is_problem(self) -> bool:
        """Whether a rule on gradients was broken."""
        return self.kind in PROBLEMS and self.status == "error"

    def to_wire(self) -> dict[str, Any]:
        """The result in builtin types, which is all that may cross a process."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> GradientResult:
        """The inverse of `to_wire`."""
        return msgspec.convert(wire, cls)
