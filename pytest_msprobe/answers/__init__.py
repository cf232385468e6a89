"""One answer for every suite and command: what is wrong as data, and one module that says it."""

from pytest_msprobe.answers.answer import (
    EXIT_CODES as EXIT_CODES,
    About as About,
    Answer as Answer,
    Measure as Measure,
    Outcome as Outcome,
    TakenStep as TakenStep,
    with_findings as with_findings,
    with_open as with_open,
)
from pytest_msprobe.answers.finding import (
    CONFIDENCES as CONFIDENCES,
    ArgumentDifference as ArgumentDifference,
    Confidence as Confidence,
    Exact as Exact,
    ExactKind as ExactKind,
    Farther as Farther,
    Finding as Finding,
    Gap as Gap,
    NextStep as NextStep,
    Place as Place,
    Reach as Reach,
)
from pytest_msprobe.answers.from_rows import (
    RowFacts as RowFacts,
    RunRows as RunRows,
)
