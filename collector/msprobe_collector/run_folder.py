"""Where a process writes: `{dump_path}/step{n}/rank{r}`, or `proc{pid}` while no rank is known."""

from __future__ import annotations

import os
from pathlib import Path

from msprobe_collector.configuration import ConfigurationError


def step_folder(dump_path: Path, step: int, rank: int | None) -> Path:
    """The folder of one step of this process."""
    return dump_path / f"step{step}" / (f"proc{os.getpid()}" if rank is None else f"rank{rank}")


def prepare_dump_path(dump_path: Path) -> None:
    """Create the root of the dump.

    Raises:
        ConfigurationError: it cannot be created or written to.
    """
    try:
        dump_path.mkdir(mode=0o750, parents=True, exist_ok=True)
    except FileExistsError:
        raise _refusal(dump_path, "is a file; name a folder") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise _refusal(dump_path, f"cannot be created: {reason}; name a folder that can be written") from None
    if not os.access(dump_path, os.W_OK | os.X_OK):
        raise _refusal(dump_path, "cannot be written to; name another folder or change its permissions")


def _refusal(dump_path: Path, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{str(dump_path)!r} {problem}", place="PrecisionDebugger", field="dump_path")
