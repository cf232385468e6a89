"""What checking one direction of one API call found."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_msprobe.reports.row import OutputRow, Status


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one direction, with what a reader needs to act on it.

    Attributes:
        status: `pass`, `error` or `skip`.
        message: one sentence on a skip or an error that no output explains; a note on a pass.
        outputs: one row per output or gradient.
        explanation: for a failure, what differs and where, over several lines.
        device, bench: who was tested and against what; "" when it did not come to that.
        plot: picture of a failure for the HTML page, PNG in base64; "" without one.
    """

    status: Status
    message: str = ""
    outputs: tuple[OutputRow, ...] = ()
    explanation: str = ""
    device: str = ""
    bench: str = ""
    plot: str = ""


class NotJudged(Exception):
    """Ends a check before there is anything to compare; carries its finding. Raised only where no array is held."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.finding = Finding(status, message)


def text_of(error: BaseException) -> str:
    """Type and message of an exception of a framework, in one line, without its C++ stack."""
    message = str(error).strip().partition("\n\n---")[0]
    lines = " ".join(line.strip() for line in message.splitlines() if line.strip(" -"))
    shown = lines if len(lines) <= 600 else f"{lines[:597]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__
