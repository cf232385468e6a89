"""A dump that stands where another one is to be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msprobe_collector.dump_format import TENSOR_FOLDER
from msprobe_collector.recording.faults import ERROR_LOG

#: What a rank's folder holds besides tensors; the first is removed first, so that no record outlives its tensors.
_FILES = ("dump.json", "debug.json", "stack.json", "construct.json", ERROR_LOG)
_TENSORS = (".npy", ".pt")


def remove_earlier_dump(folder: Path) -> bool:
    """Remove the dump in a rank's `folder`, and nothing else; whether there was one. Raises OSError."""
    found = False
    for name in _FILES:
        with suppress(FileNotFoundError):
            (folder / name).unlink()
            found = True
    tensors = folder / TENSOR_FOLDER
    if tensors.is_dir() and not tensors.is_symlink():
        for file in tensors.iterdir():
            if file.suffix in _TENSORS:
                file.unlink()
                found = True
        with suppress(OSError):  # something else stands in it
            tensors.rmdir()
    return found


def dumps_before(dump_path: Path, time: float) -> Iterator[Path]:
    """Folders of ranks below `dump_path` whose dump was last written to before `time` (seconds since the epoch)."""
    for name in _FILES[:2]:
        for file in sorted(dump_path.glob(f"step*/*/{name}")):
            with suppress(OSError):
                if file.stat().st_mtime < time:
                    yield file.parent
