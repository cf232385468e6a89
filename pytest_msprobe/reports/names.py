"""How reports call an API call: its own name, after the folder of its dump when there are several dumps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


class CallNames:
    """Names of API calls in the reports of a run over some dumps."""

    def __init__(self, dumps: Sequence[Path]) -> None:
        folders = [str(path.parent) for path in dumps]
        self._common = Path(os.path.commonpath(folders)) if len(set(folders)) > 1 else None

    def of(self, dump: str, call: str) -> str:
        """The name of `call` of the dump at path `dump`."""
        if self._common is None:
            return call
        return f"{Path(dump).parent.relative_to(self._common).as_posix()}/{call}"
