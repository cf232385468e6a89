"""The folders for what failing API calls leave behind: reserved by the process that writes, filled by all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_msprobe.suites.contract import Context
from pytest_msprobe.suites.precheck.options import PrecheckSettings

if TYPE_CHECKING:
    from pytest_msprobe.evidence.failure_evidence import FailureKeeper

_ERROR_DATA, _REPRODUCERS = "error data", "reproducers"


class EvidenceFolders:
    """Folders of one run for the evidence of failing calls."""

    def __init__(self, context: Context, settings: PrecheckSettings) -> None:
        self._context = context
        self._settings = settings

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Paths by what the folders hold; reserved when first asked, or, in a worker, as the writing process said.

        Raises:
            pytest.UsageError: a folder cannot be made.
        """
        if not self._context.is_writer:
            return {kind: Path(path) for kind, path in self._context.evidence.items()}
        settings = self._settings
        asked = (
            (_ERROR_DATA, settings.error_data, "--msprobe-error-data-dir"),
            (_REPRODUCERS, settings.reproducers, "--msprobe-reproducers"),
        )
        if not any(path for _, path, _ in asked):
            return {}
        from pytest_msprobe.evidence.evidence_folder import reserve

        return {kind: reserve(path, option) for kind, path, option in asked if path is not None}

    def plugins(self) -> Iterator[tuple[str, object]]:
        """Plugins that say at the end what the folders hold, by name."""
        if self.paths:
            from pytest_msprobe.evidence.evidence_folder import EvidenceFolder
            from pytest_msprobe.evidence.evidence_plugin import EvidencePlugin

            folders = {
                kind: EvidenceFolder(path, self._settings.error_data_limit_bytes) for kind, path in self.paths.items()
            }
            yield "msprobe-evidence", EvidencePlugin(folders)

    def keeper(self, dumps: Sequence[Path], seed: int) -> FailureKeeper | None:
        """The object that keeps what failing calls computed; None when nothing of it was asked for."""
        if not self.paths:
            return None
        from pytest_msprobe.evidence.error_data import ErrorData
        from pytest_msprobe.evidence.evidence import EvidenceWriter
        from pytest_msprobe.evidence.evidence_folder import EvidenceFolder
        from pytest_msprobe.evidence.failure_evidence import FailureKeeper
        from pytest_msprobe.evidence.reproducer import Reproducers

        makers: dict[str, Callable[[EvidenceFolder, Sequence[Path]], EvidenceWriter]] = {
            _ERROR_DATA: ErrorData,
            _REPRODUCERS: Reproducers,
        }
        writers: list[EvidenceWriter] = [
            makers[kind](EvidenceFolder(path, self._settings.error_data_limit_bytes), dumps)
            for kind, path in self.paths.items()
        ]
        return FailureKeeper(tuple(writers), seed)
