"""What laws have said in one process: `laws.jsonl`, lines on stderr, and a closing line.

The file is one JSON object a line. `run` comes first; `finding` lines follow as they are found; a `checked` line
says how often a law was checked of something, and replaces the earlier ones of that law and thing. So a process that is
killed leaves what was found and, to within some steps, what was checked.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from msprobe_laws import signals, updates
from msprobe_laws.law import Checked, Law, Unchecked, Violation, few_digits, listed
from msprobe_laws.training import RANKS_DRAW, REPLICAS, STATEMENTS, Statement

_CLASSES: tuple[type[Law[Any]], ...] = (
    *updates.OF_FORMULA,
    *updates.OF_UPDATE,
    updates.StateContinues,
    *signals.OF_SIGNALS,
)
_CHECKED = [Statement(law.name, law.sentence, law.source, law.tolerance) for law in _CLASSES]
#: By name, those on updates first.
LAWS: dict[str, Statement] = {law.name: law for law in (*_CHECKED, *STATEMENTS)}
#: Those that compare ranks, which are checked from the files of all of them.
OF_RANKS = (REPLICAS, RANKS_DRAW)


FILE = "laws.jsonl"
SCHEMA = 1
#: How many findings are shown on stderr, and written of one law and thing in the same words.
_SHOWN = 10
_WRITTEN = 3


@dataclass(slots=True)
class _Tally:
    """What became of one law of one thing.

    Attributes:
        checks: how often it was checked.
        findings: how many steps had a finding.
        reason: why it was not checked, the last one.
        is_moot: whether there was nothing to check, in all checks.
        written: how many findings are written, by the words of their messages.
    """

    checks: int = 0
    findings: int = 0
    reason: str = ""
    is_moot: bool = True
    written: dict[str, int] = field(default_factory=dict)


class Journal:
    """Writes what laws say. Nothing is created before the first line."""

    def __init__(
        self,
        root: Path,
        describe: Callable[[], Mapping[str, Any]],
        rank: Callable[[], int | None],
        meant: Mapping[str, str] | None = None,
    ) -> None:
        """Make a journal in a folder `rank{n}` below `root`.

        Args:
            root: the folder.
            describe: gives further entries of its first line.
            rank: gives the rank of this process.
            meant: why findings are no fault, by their law.
        """
        self._root, self._describe, self._rank, self._meant = root, describe, rank, dict(meant or {})
        self._file: TextIO | None = None
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._shown = 0
        self._pid = os.getpid()
        self._steps = 0
        #: Told the folder of this process when it is made.
        self.on_open: Callable[[Path], None] = lambda folder: None

    @property
    def is_ours(self) -> bool:
        """Whether this process made it, and not one that it was forked from."""
        return self._pid == os.getpid()

    @property
    def path(self) -> Path | None:
        """The file; None before the first line."""
        return None if self._file is None else Path(self._file.name)

    @property
    def folder(self) -> Path:
        """The folder of all ranks."""
        return self._root

    def take(self, law: str, about: str, result: Checked, *, step: int, source: str = "") -> None:
        """Note that `law` was checked of `about`, with these findings, or why it could not be checked."""
        if not self.is_ours:
            return
        tally = self._tallies.setdefault((law, about), _Tally())
        if isinstance(result, Unchecked):
            tally.reason, tally.is_moot = result.reason, tally.is_moot and result.is_moot
            return
        tally.checks += 1
        tally.findings += bool(result)
        for finding in result:
            words = " ".join(word for word in finding.message.split() if word.isalpha())[:24]
            if tally.written.get(words, 0) < _WRITTEN:
                tally.written[words] = tally.written.get(words, 0) + 1
                self._found(finding, about, step, source, is_first=tally.written[words] == 1)

    def _found(self, finding: Violation, about: str, step: int, source: str, *, is_first: bool) -> None:
        size = finding.size
        entry: dict[str, Any] = {
            "kind": "finding",
            "law": finding.law,
            "about": about,
            "parameter": finding.parameter,
            "others": list(finding.others[:100]),
            "other_count": len(finding.others),
            "step": step,
            "size": None if size is None else float(f"{size:.3g}") if math.isfinite(size) else str(size),
            "message": finding.message,
            "source": source,
        }
        self._write(entry)
        if not is_first:
            return
        self._shown += 1
        if self._shown <= _SHOWN:
            times = "" if size is None else f" ({few_digits(size)} times its tolerance)"
            more = f" [and {listed(finding.others)}]" if finding.others else ""
            where = f", {source}" if source else ""
            reason = self._meant.get(finding.law)
            kind = "law" if reason is None else f"meant ({reason}):"
            _say(f"{kind} {finding.law}: {finding.parameter}{more}: {finding.message}{times} (step {step}{where})")
        elif self._shown == _SHOWN + 1:
            _say(f"more findings go to {self.path} only")

    def step_ended(self) -> None:
        """Note that an update is over. Counts are written after steps 1, 2, 4, 8, ... of the process."""
        self._steps += 1
        if self._steps & (self._steps - 1) == 0:
            self.write_counts()

    def write_counts(self) -> None:
        """Write how often each law was checked."""
        if not self.is_ours:
            return
        for (law, about), tally in self._tallies.items():
            self._write(
                {
                    "kind": "checked",
                    "law": law,
                    "about": about,
                    "checks": tally.checks,
                    "findings": tally.findings,
                    "unchecked": "" if tally.checks else tally.reason,
                    "moot": not tally.checks and tally.is_moot,
                }
            )

    def note(self, entry: Mapping[str, Any]) -> None:
        """Write an entry of another kind."""
        if self.is_ours:
            self._write(entry)

    def close(self, faults: int = 0) -> None:
        """Write the counts and the closing line; nothing where nothing was seen.

        Args:
            faults: how many kinds of faults of ours there were: not everything was checked then.
        """
        if not self.is_ours or not self._tallies:
            return
        self.write_counts()
        if faults:
            self._write({"kind": "fault", "faults": faults})
        if self.path is not None:
            missing = "; the checks themselves failed in part, see dump_error_info.log beside it" if faults else ""
            command = f"pytest --msprobe-dump={self._root} --msprobe-suite=laws"
            _say(f"{self._summary()}{missing}; {self.path}; {command} compares the ranks, too")
        self.abandon()

    def _summary(self) -> str:
        """Return what was checked and holds, what does not, and what was not checked."""
        laws = {law for (law, _), tally in self._tallies.items() if tally.checks}
        with_findings = {law for (law, _), tally in self._tallies.items() if tally.findings}
        broken = sorted(with_findings - self._meant.keys())
        result = f"{len(broken)} do not hold ({listed(broken, 5)})" if broken else "what was compared holds"
        if meant := sorted(with_findings & self._meant.keys()):
            result += f"; meant: {listed(meant, 5)}"
        unchecked: dict[str, None] = {}
        for (law, about), tally in self._tallies.items():
            if not tally.checks and not tally.is_moot:
                unchecked[f"{law} of {about}" if law in laws else law] = None
        if unchecked:
            result += f"; not checked: {', '.join(unchecked)}"
        asked = {law for (law, _), tally in self._tallies.items() if tally.checks or not tally.is_moot}
        if absent := [law for law in LAWS if law not in asked and law not in OF_RANKS]:
            result += f"; nothing to check: {', '.join(absent)}"
        return f"{len(laws)} laws were checked in {self._steps} steps: {result}"

    def abandon(self) -> None:
        """Write nothing more."""
        if self._file is not None and self.is_ours:
            self._file.close()
        self._file = None
        self._tallies.clear()

    def _write(self, entry: Mapping[str, Any]) -> None:
        if self._file is None:
            self._file = self._opened()
            run = {"kind": "run", "schema": SCHEMA, "pid": os.getpid(), "rank": self._rank() or 0}
            self._write({**run, **self._describe(), "meant": self._meant})
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def _opened(self) -> TextIO:
        """Return the file of this rank; one beside it where another process that still runs writes that."""
        folder = self._root / f"rank{self._rank() or 0}"
        if _is_written_by_another(folder / FILE):
            folder = self._root / f"rank{self._rank() or 0}-proc{os.getpid()}"
        folder.mkdir(mode=0o777, parents=True, exist_ok=True)
        self.on_open(folder)
        return open(folder / FILE, "w", encoding="utf-8", errors="backslashreplace")


def _is_written_by_another(path: Path) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            pid = int(json.loads(file.readline(10_000))["pid"])
        if pid == os.getpid():
            return False
        os.kill(pid, 0)
    except PermissionError:  # it runs, as another user
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def _say(text: str) -> None:
    """Write one line on stderr, whatever the script did to it."""
    try:
        sys.stderr.write(f"msprobe: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return
