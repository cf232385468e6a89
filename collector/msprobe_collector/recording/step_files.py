"""The files of one step of one rank."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_collector.configuration import Configuration
from msprobe_collector.dump_format import TENSOR_FOLDER
from msprobe_collector.dump_format.writing.growing_file import GrowingFile
from msprobe_collector.dump_format.writing.tensor_files import TensorFiles
from msprobe_collector.recording.earlier_dump import remove_earlier_dump


class StepFiles:
    """dump.json, stack.json, construct.json, debug.json and the tensors in one folder, and nothing of an earlier dump.

    Attributes:
        folder: `{dump_path}/step{n}/rank{r}` or `proc{pid}`.
        has_replaced: whether an earlier dump stood there.
        dump: the records; for level debug the values that `save` was given.
        stacks, construct: None where the configuration has no extra_info.
    """

    def __init__(self, folder: Path, configuration: Configuration, framework: str) -> None:
        """Create the files, empty, in place of those of an earlier dump. The folder exists. Raises OSError."""
        self.has_replaced = remove_earlier_dump(folder)
        self.folder = folder
        is_debug = configuration.level == "debug"
        self._configuration = configuration
        self._framework = framework
        name = "debug.json" if is_debug else "dump.json"
        self.dump = GrowingFile(folder / name, head=self._head(), entries_key="data")
        self._tensors = TensorFiles(folder / TENSOR_FOLDER)
        self.stacks: GrowingFile | None = None
        self.construct: GrowingFile | None = None
        if configuration.extra_info and not is_debug:
            self.stacks = GrowingFile(folder / "stack.json")
            self.construct = GrowingFile(folder / "construct.json", entries_per_write=256)
        try:
            for file in self._files():
                file.create()
        except OSError:
            self._abandon()
            raise

    def save(self, arrays: Iterable[tuple[str, np.ndarray[Any, Any]]]) -> dict[str, OSError]:
        """Write `arrays` (file name, values) into dump_tensor_data; why some are not there, by file name."""
        refused = {}
        for name, array in arrays:
            try:
                self._tensors.save(name, array)
            except OSError as error:
                refused[name] = error
        return refused

    def move(self, folder: Path) -> None:
        """Give the folder another name. Raises OSError, also when something stands there."""
        self.folder.rename(folder)
        self.folder = folder
        self._tensors.folder = folder / TENSOR_FOLDER
        self.dump.change(folder / self.dump.path.name, self._head())

    def flush(self) -> None:
        """Write what waits. Raises OSError."""
        for file in self._files():
            file.flush()

    def close(self) -> None:
        """Write what waits and close the files, which stay whole. Raises OSError."""
        for file in self._files():
            file.close()

    def _abandon(self) -> None:
        """Leave nothing of a dump that could not be begun."""
        for file in self._files():
            with suppress(OSError):
                file.close()
                file.path.unlink(missing_ok=True)
        for folder in (self.folder, self.folder.parent):
            with suppress(OSError):
                folder.rmdir()

    def _head(self) -> dict[str, object]:
        configuration = self._configuration
        saves = configuration.task in ("tensor", "overflow_check") or bool(configuration.selection.tensor_names)
        return {
            "task": configuration.task,
            "level": configuration.level,
            "framework": self._framework,
            "dump_data_dir": str(self.folder / TENSOR_FOLDER) if saves else None,
        }

    def _files(self) -> list[GrowingFile]:
        return [file for file in (self.dump, self.stacks, self.construct) if file is not None]
