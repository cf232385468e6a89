"""What judging one record found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["pass", "error", "skip"]
#: The word of `OutputRow.rounding` for a failure that is none of the operation's.
EXPLAINED = "explained by rounding"
#: Figures that say how bad an output is: error over tolerance, then what suites without tolerances have.
_BADNESS = ("ratio", "distance", "similarity", "max_abs")


@dataclass(frozen=True, slots=True)
class OutputRow:
    """How one output, gradient or other value of a record was judged.

    Attributes:
        label: its place, as in the details table: `output.0`.
        bench_dtype, tested_dtype: names as in dumps (`Float64`), or the Python type of a plain value; "" if unknown.
        shape: of the benchmark's output.
        status: `pass` or `error`; `skip` where the standard cannot judge it.
        message: one line on what is wrong, "" for a pass.
        standard: name of the rule that judged it, "" for the default one.
        figures: by name (see `Suite.figures`); None where a figure has no meaning for this output. `ratio` is how many
            times its tolerance the error is, at most 1 for a pass.
        rounding: of a failed output, `explained by rounding` or not, and how far; "" otherwise.
        pattern: of a failed output, what its wrong elements have in common, in a short phrase; "" otherwise.
        picture: of a failed output, where and how much it is off, see `evidence.error_picture`; None without one.
    """

    label: str
    bench_dtype: str
    tested_dtype: str
    shape: tuple[int, ...]
    status: Status
    message: str = ""
    standard: str = ""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    rounding: str = ""
    pattern: str = ""
    picture: Mapping[str, Any] | None = None

    @property
    def cosine(self) -> float | None:
        """Cosine of the tested and the benchmark output; None where it was not measured."""
        return self.figures.get("cosine")

    @property
    def max_abs(self) -> float | None:
        """Maximum absolute error; None where it was not measured."""
        return self.figures.get("max_abs")

    @property
    def max_rel(self) -> float | None:
        """Maximum relative error; None where it was not measured."""
        return self.figures.get("max_rel")

    @property
    def max_ulp(self) -> float | None:
        """Maximum error in units in the last place of the tested dtype; None where it was not measured."""
        return self.figures.get("max_ulp")

    @property
    def ratio(self) -> float | None:
        """How many times its tolerance the error is, at most 1 for a pass; None where no tolerance applies."""
        return self.figures.get("ratio")

    @property
    def badness(self) -> tuple[bool, float]:
        """Sort key: a failed output above all that pass, then by the first figure of `_BADNESS` that it has.

        An error without a figure is the largest.
        """
        found = (
            -value if name == "similarity" else value
            for name in _BADNESS
            if (value := self.figures.get(name)) is not None
        )
        largest = next(found, math.inf)
        return self.status == "error", math.inf if math.isnan(largest) else largest


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one record, with what a reader needs to act on it.

    Attributes:
        status: `pass`, `error` or `skip`.
        message: one line on a skip, or on an error that no output explains; a note on a pass.
        outputs: one row per judged value.
        explanation: of an error, over several lines: what differs and where.
        device, bench: what was tested and against what; "" when it did not come to that.
        plot: picture of an error for the HTML page, PNG in base64; "" without one.
        attachment: what the suite's own report needs of this record, in builtin types; None for nothing.
        properties: further facts for JUnit, as (name, value).
        excuse: why an error is none of the record's own, as one line: pytest counts it as an expected failure; "" for
            any other.
    """

    status: Status
    message: str = ""
    outputs: tuple[OutputRow, ...] = ()
    explanation: str = ""
    device: str = ""
    bench: str = ""
    plot: str = ""
    attachment: Mapping[str, Any] | None = None
    properties: tuple[tuple[str, str | float], ...] = ()
    excuse: str = ""
