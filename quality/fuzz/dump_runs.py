"""Every suite over mutated dumps, many per pytest session, in this process.

`python -m quality.fuzz dumps 10000` runs that many dumps in each suite. The same seeds give the same dumps.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import re
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from types import FrameType

import pytest

from quality.fuzz.mutated_dumps import write_dump, write_gradients

_BATCH = 50
#: A batch takes a few seconds; this is said to hang.
_HANG_SECONDS = 400
_MEMORY_BYTES = 12 << 30
_ALLOWED_CODES = {0, 1, 2, 4, 5}
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|INTERNALERROR|internal error of pytest-msprobe|^E   \S+Error", re.M
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


@dataclass
class Outcome:
    """What running many dumps gave.

    Attributes:
        counts: items by suite and outcome, and `dumps` by suite.
        problems: what no dump may cause, with suite and seeds.
    """

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Audit:
    """Listens, while it is on, for what reading a dump must never do. An audit hook cannot be taken off again."""

    _WATCHED = (
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "socket.connect",
        "socket.bind",
        "socket.getaddrinfo",
        "ctypes.dlopen",
        "pickle.find_class",
    )
    _WRITES = (
        "os.remove",
        "os.rename",
        "os.mkdir",
        "os.rmdir",
        "os.symlink",
        "os.link",
        "os.chmod",
        "os.truncate",
        "shutil.",
    )

    def __init__(self) -> None:
        self._inside: Path | None = None
        # Asked here: the question writes a file, under a lock, when it is asked first.
        self._temporary = tempfile.gettempdir()
        self.events: list[str] = []
        sys.addaudithook(self._hear)

    @contextmanager
    def listening(self, inside: Path) -> Iterator[None]:
        """Within, events are kept, other than writing in the folder `inside`."""
        self.events.clear()
        self._inside = inside
        try:
            yield
        finally:
            self._inside = None

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._inside is None:
            return
        if event == "open":
            path, _, flags = arguments
            is_write = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if is_write and not self._may_write(path):
                self.events.append(f"open for writing: {path!r}")
        elif event.startswith(self._WRITES):
            # PyTorch makes a folder for compiled code when its compiler is imported.
            if not self._may_write(arguments[0]) and not _is_importing():
                self.events.append(f"{event}: {arguments!r}")
        elif event.startswith(self._WATCHED) and not _is_importing():
            self.events.append(f"{event}: {str(arguments)[:200]}")

    def _may_write(self, path: object) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return True  # a descriptor that is open already
        # A folder itself: a file without a name, as pytest's capture makes, and as shows whether it can be written.
        text = os.path.abspath(os.fsdecode(path))
        folders = self._temporary, str(self._inside and self._inside.parent)
        # Modules that are imported for the first time are compiled, by pytest too.
        is_compiled = f"{os.sep}__pycache__{os.sep}" in text
        return is_compiled or text in (os.devnull, *folders) or text.startswith((str(self._inside), sys.prefix))


def _is_importing() -> bool:
    """Whether a module of a framework is being imported, which loads libraries and asks for the processor."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


class _Items:
    """What pytest itself says of the items."""

    def __init__(self) -> None:
        self.count = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.count = len(session.items)


Suite = tuple[Callable[..., None], str, list[str]]
_DUMPS = "--msprobe-dump=target"
#: Mutated calls are run: by PyTorch, whose kernels refuse wrong arguments where others read beside a tensor.
_RUNNING = (_DUMPS, "--msprobe-device=torch:cpu", "--msprobe-max-memory=200MB")
SUITES: dict[str, Suite] = {
    "precheck": (write_dump, "step{}/rank0", [_DUMPS, "--msprobe-device=recorded", "--msprobe-max-memory=200MB"]),
    "comparison": (write_dump, "step{}/rank0", [_DUMPS, "--msprobe-golden=golden"]),
    "overflow": (write_dump, "step{}/rank0", [_DUMPS, "--msprobe-suite=overflow", "--msprobe-max-memory=200MB"]),
    "gradients": (write_gradients, "rank{}", ["--msprobe-gradients=target", "--msprobe-golden=golden"]),
    "repeat": (write_dump, "step{}/rank0", [*_RUNNING, "--msprobe-suite=repeat", "--msprobe-repeat-runs=3"]),
    "edge-cases": (write_dump, "step{}/rank0", [*_RUNNING, "--msprobe-edge-cases"]),
}


def run_many(folder: Path, seeds: range, *, suites: tuple[str, ...] = tuple(SUITES)) -> Outcome:
    """Run the dump of each seed in each suite, in batches."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    outcome, audit = Outcome(), Audit()
    for suite in suites:
        _run(folder, suite, range(3), Outcome(), audit, is_mutated=False)  # loads what a run needs
        for start in range(seeds.start, seeds.stop, _BATCH):
            batch = range(start, min(start + _BATCH, seeds.stop))
            found = _run(folder, suite, batch, outcome, audit)
            if found:
                found = _culprits(folder, suite, batch, audit) or found
            outcome.problems += found
    return outcome


def _culprits(folder: Path, suite: str, seeds: range, audit: Audit) -> list[str]:
    """The problems of single dumps among `seeds`, found by halves."""
    found = _run(folder, suite, seeds, Outcome(), audit)
    if not found or len(seeds) == 1:
        return found
    middle = len(seeds) // 2
    return _culprits(folder, suite, seeds[:middle], audit) + _culprits(folder, suite, seeds[middle:], audit)


def _run(
    folder: Path, suite: str, seeds: range, outcome: Outcome, audit: Audit, *, is_mutated: bool = True
) -> list[str]:
    """Problems of one pytest run over the dumps of `seeds`."""
    rmtree(folder, ignore_errors=True)
    write, place, options = SUITES[suite]
    for seed in seeds:
        write(folder / "target" / place.format(seed), seed, is_mutated=is_mutated)
        write(folder / "golden" / place.format(seed), seed, is_mutated=False)
    (folder / "pytest.ini").write_text("[pytest]\n")
    items, output = _Items(), io.StringIO()
    arguments = [
        *options,
        "--msprobe-out=out",
        "--msprobe-jsonl=out/rows.jsonl",
        "-p",
        "no:cacheprovider",
        "--rootdir=.",
    ]
    previous = os.getcwd()
    os.chdir(folder)
    faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True, file=sys.__stderr__)
    try:
        with redirect_stdout(output), redirect_stderr(output), audit.listening(folder / "out"):
            code = int(pytest.main(arguments, plugins=[items]))
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.chdir(previous)
    rows = _rows(folder / "out" / "rows.jsonl")
    outcome.counts[f"{suite} dumps"] += len(seeds)
    for row in rows:
        outcome.counts[f"{suite} {row['status']}"] += 1
    where = f"{suite}, seeds {seeds.start} to {seeds.stop - 1}: "
    return [f"{where}{problem}" for problem in _problems(code, output.getvalue(), items.count, len(rows), audit.events)]


def _problems(code: int, text: str, items: int, rows: int, events: list[str]) -> list[str]:
    found = [] if code in _ALLOWED_CODES else [f"exit code {code}"]
    if items != rows:
        found.append(f"{items} items, {rows} rows")
    if tracebacks := list(_TRACEBACK.finditer(text)):
        end = text.find("\n\n", tracebacks[-1].start())
        found.append(f"a traceback: {text[max(tracebacks[0].start(), end - 1500) : end]}")
    if (control := _CONTROL.search(text)) is not None:
        found.append(f"a control character: {text[max(0, control.start() - 200) : control.start() + 50]!r}")
    return found + sorted(set(events))[:5]


def _rows(path: Path) -> list[dict[str, str]]:
    """The last row of each item: that of a Cell may follow once more."""
    lines = path.read_text().splitlines() if path.exists() else []
    return list({row["node_id"]: row for row in map(json.loads, lines)}.values())
