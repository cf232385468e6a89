"""The page of a run, made from its machine rows when it ends."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pytest_msprobe.installing import version_of
from pytest_msprobe.reports.page.page import check_replaceable, write_page
from pytest_msprobe.suites.contract import Suite


class RunPage:
    """Writes the page from the JSONL file of the run; where none was asked for, from one that is kept until then.

    Attributes:
        path: of the page.
        option: as the command line has it.
    """

    def __init__(self, path: Path, suite: Suite) -> None:
        """A page at `path`.

        Raises:
            pytest.UsageError: another file stands there.
        """
        self.path = path
        self.option = f"--msprobe-page={path}"
        self._suite = suite
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            check_replaceable(path)
        except OSError as error:
            raise pytest.UsageError(f"{self.option}: {error.strerror or error}") from None

    def rows_beside(self) -> Path:
        """A file for the rows of a run that writes none; it goes when the page is written."""
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="msprobe_rows_")
        return Path(self._folder.name) / "rows.jsonl"

    def write(self, rows: Path) -> None:
        """Write it. Raises OSError."""
        try:
            write_page(self.path, [rows] if rows.exists() else [], {self._suite.name: type(self._suite)}.get)
        finally:
            if self._folder is not None:
                self._folder.cleanup()


def started_as(config: pytest.Config) -> dict[str, object]:
    """Command line, folder and version of the run.

    Stored in the first row so that the page can print a command that repeats records.
    """
    return {
        "arguments": [str(argument) for argument in config.invocation_params.args],
        "folder": str(config.invocation_params.dir),
        "version": version_of("pytest-msprobe"),
    }
