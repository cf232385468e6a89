"""The laws of one process: what sees its training, what checks it, and where findings go."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from msprobe_collector.recording.guard import Activity, FaultLog, Guard
from msprobe_laws.catalogue import LAWS
from msprobe_laws.extension import chosen_folder, left_out, meant
from msprobe_laws.journal import Journal
from msprobe_laws.session import LawSession

_lock = threading.Lock()


class Seeing(Protocol):
    """Sees a part of training while it is installed."""

    def install(self) -> None:
        """See from now on."""

    def uninstall(self) -> None:
        """See no more."""


class LawWatch:
    """Checks laws from `install` to `close`. The class of a framework sets what sees its training."""

    signals: Seeing
    optimizers: Seeing
    _of_process: ClassVar[LawWatch | None] = None

    def __init__(self, folder: Path, skip: Iterable[str], laws_meant: Mapping[str, str] | None = None) -> None:
        """Write findings below `folder`; the laws named in `skip` are left out. `laws_meant`: see `start`."""
        self.guard = Guard(Activity(), FaultLog())
        skip, declared = tuple(skip), {**meant(folder), **(laws_meant or {})}
        for name in [name for name in (*skip, *declared) if name not in LAWS]:
            sys.stderr.write(f"msprobe: there is no law {name}\n")
        self.journal = Journal(folder, self.describe, self.rank, declared)
        self.journal.on_open = self.guard.faults.write_to
        self.session = LawSession(self.journal, skip)

    @classmethod
    def start(
        cls,
        folder: str | os.PathLike[str] | None = None,
        *,
        skip: Iterable[str] = (),
        laws_meant: Mapping[str, str] | None = None,
    ) -> LawWatch:
        """Check the laws of training in this process from now on.

        Args:
            folder: where findings go, `msprobe_laws` by default; one file for each rank is written below it.
            skip: names of laws to leave out, beside those of MSPROBE_LAWS_SKIP.
            laws_meant: why what a law finds is meant, by its name, beside those of MSPROBE_LAWS_MEANT: its findings
                are information.

        Returns:
            The watch, the same one for every call; its `close()` ends it, which the end of the process does as well.
        """
        with _lock:
            if cls._of_process is None:
                chosen = chosen_folder() if folder is None else Path(folder)
                watch = cls(chosen, (*skip, *left_out()), laws_meant)
                watch.install()
                cls._of_process = watch
            return cls._of_process

    @staticmethod
    def describe() -> dict[str, Any]:
        """Return what the first line of the journal says of the run."""
        return {"script": Path(sys.argv[0]).name if sys.argv else ""}

    @staticmethod
    def rank() -> int | None:
        """Return the rank of this process; None where it is alone."""
        return None

    def install(self) -> None:
        """Watch from now on."""
        self.optimizers.install()
        self.signals.install()
        atexit.register(self.close)

    def close(self) -> None:
        """Write the closing line, and watch no more."""
        atexit.unregister(self.close)
        self.optimizers.uninstall()
        self.signals.uninstall()
        self.guard.enter("laws: the end", self.at_the_end)
        self.guard.enter("laws: the end", self.session.close, int(self.guard.faults.has_any))

    def at_the_end(self) -> None:
        """Check what is known when the training is over."""
