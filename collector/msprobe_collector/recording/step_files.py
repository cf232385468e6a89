"""The files of one step of one rank."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from msprobe_collector.configuration import Configuration
from msprobe_collector.dump_format import TENSOR_FOLDER
from msprobe_collector.recording.growing_file import GrowingFile
from msprobe_collector.recording.tensor_files import TensorFiles


class StepFiles:
    """dump.json, stack.json, construct.json, debug.json and the tensors in one folder.

    Attributes:
        folder: `{dump_path}/step{n}/rank{r}` or `proc{pid}`.
        dump: the records; for level debug the values that `save` was given.
        stacks, construct: None where the configuration has no extra_info.
    """

    def __init__(self, folder: Path, configuration: Configuration) -> None:
        """Create the folder and the files, empty. Raises OSError."""
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.folder = folder
        is_debug = configuration.level == "debug"
        self._configuration = configuration
        name = "debug.json" if is_debug else "dump.json"
        self.dump = GrowingFile(folder / name, head=self._head(), entries_key="data")
        self._tensors = TensorFiles(folder / TENSOR_FOLDER)
        self.stacks: GrowingFile | None = None
        self.construct: GrowingFile | None = None
        if configuration.extra_info and not is_debug:
            self.stacks = GrowingFile(folder / "stack.json")
            self.construct = GrowingFile(folder / "construct.json", entries_per_write=256)
        for file in self._files():
            file.create()

    def save(self, arrays: Iterable[tuple[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]]) -> None:
        """Write `arrays` (file name, values) into dump_tensor_data. Raises OSError."""
        for name, array in arrays:
            self._tensors.save(name, array)

    def move(self, folder: Path) -> None:
        """Give the folder another name. Raises OSError, also when that name is taken."""
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

    def _head(self) -> dict[str, object]:
        configuration = self._configuration
        saves = configuration.task in ("tensor", "overflow_check") or bool(configuration.selection.tensor_names)
        return {
            "task": configuration.task,
            "level": configuration.level,
            "framework": "mindspore",
            "dump_data_dir": str(self.folder / TENSOR_FOLDER) if saves else None,
        }

    def _files(self) -> list[GrowingFile]:
        return [file for file in (self.dump, self.stacks, self.construct) if file is not None]
