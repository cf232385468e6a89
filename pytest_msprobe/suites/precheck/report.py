"""What a pre-check leaves behind: the CSV pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pytest_msprobe.reports.csv_pair import CsvPair
from pytest_msprobe.suites.contract import SuiteReport
from pytest_msprobe.verdicts import VerdictRow


class PrecheckReport(SuiteReport):
    """Writes the rows of an API call as soon as it is done."""

    def __init__(self, out: Path, continued: tuple[Path, Path] | None, untested: Callable[[], str]) -> None:
        """A new pair in `out`, or the one that is `continued`: its (details, result); `untested` as the method."""
        self._pair = CsvPair(out, continued)
        self._untested = untested

    def untested(self) -> str:
        """See `SuiteReport.untested`: PyTorch on CPU may have been compared with itself."""
        return self._untested()

    def receive_call(self, name: str, rows: Sequence[VerdictRow]) -> None:
        """Write them."""
        self._pair.write(name, rows)

    def finish(self) -> None:
        """Close both files."""
        self._pair.close()

    def resumable(self) -> Path | None:
        """The result CSV."""
        return self._pair.result

    def files(self) -> Iterable[tuple[str, Path]]:
        """The pair, once there is a row."""
        if self._pair.result is not None and self._pair.details is not None:
            yield "results", self._pair.result
            yield "details", self._pair.details
