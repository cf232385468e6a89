"""One answer for every suite and command: what is wrong as data, and one module that says it."""

from pytest_msprobe.answers.answer import (
    EXIT_CODES,
    About,
    Answer,
    Measure,
    Outcome,
    TakenStep,
    with_findings,
    with_open,
)
from pytest_msprobe.answers.finding import (
    CONFIDENCES,
    ArgumentDifference,
    Confidence,
    Exact,
    ExactKind,
    Farther,
    Finding,
    Gap,
    NextStep,
    Place,
    Reach,
)
from pytest_msprobe.answers.from_rows import RowFacts, RunRows

__all__ = [
    "CONFIDENCES",
    "EXIT_CODES",
    "About",
    "Answer",
    "ArgumentDifference",
    "Confidence",
    "Exact",
    "ExactKind",
    "Farther",
    "Finding",
    "Gap",
    "Measure",
    "NextStep",
    "Outcome",
    "Place",
    "Reach",
    "RowFacts",
    "RunRows",
    "TakenStep",
    "with_findings",
    "with_open",
]
