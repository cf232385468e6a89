"""Error data and reproducers on the process that reports: where they are, and what found no room."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_msprobe.evidence.evidence_folder import EvidenceFolder


class EvidencePlugin:
    """Says at the end what the folders of this run hold, and removes those that stayed empty."""

    def __init__(self, folders: Mapping[str, EvidenceFolder]) -> None:
        """A plugin for `folders` by what they hold."""
        self._folders = folders

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line per folder that was needed."""
        for kind, folder in self._folders.items():
            state = folder.state()
            if state.saved or state.left_out:
                terminalreporter.write_line(f"{kind}: {folder.root} ({state.saved} API calls)")
            if state.left_out:
                terminalreporter.write_line(
                    f"{kind}: {state.left_out} failed checks were not saved, "
                    f"--msprobe-error-data-limit={folder.limit_bytes / 1e9:.3g}GB is used up",
                    red=True,
                )

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        """Leave no empty folder behind."""
        for folder in self._folders.values():
            folder.tidy()
