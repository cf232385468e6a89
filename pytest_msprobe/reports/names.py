"""How reports call a group of records: its own name, after what tells its file from the others of the run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msprobe_collector.dump_format.text import shown


class CallNames:
    """Names in the reports of a run over some files; no two groups share one."""

    def __init__(self, files: Sequence[Path], *, tell_files: bool = False) -> None:
        """Names for the groups in `files`; `tell_files`: calls of files in one folder have different names anyway."""
        different = dict.fromkeys(files)
        self._common = os.path.commonpath([path.parent for path in different]) if len(different) > 1 else None
        #: Folders that the run takes more than one file of: their names are not enough.
        counts = Counter(path.parent for path in different)
        self._shared = {folder for folder, count in counts.items() if count > 1 and not tell_files}

    def of(self, file: str, call: str) -> str:
        """The name of `call` of the file at path `file`: `rank0/Mint.add.0`, or `Mint.add.0` in a run of one file.

        It is safe to show.
        """
        if self._common is None:
            return shown(call)
        path = Path(file)
        place = path.parent.relative_to(self._common)
        if path.parent in self._shared:
            place /= path.name if path.name == "dump.json" else path.stem
        return shown((place / call).as_posix())
