"""Which records of an optimizer in dumps of several steps come one after another, and what stands between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msprobe_collector.dump_format import Dump, DumpError
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.records import is_optimizer_record

#: Beginning of the name of a record of clipping.
CLIP = "Optimizer.clip_grad_norm"
_PARAMETERS = "parameters."


class NotRecordedError(Exception):
    """Why a record does not hold what a law needs, as one line."""


def names(dump: Dump) -> Iterator[str]:
    """Return the records of optimizers, in order."""
    return filter(is_optimizer_record, dump.record_names)


@dataclass(frozen=True, slots=True)
class Since:
    """What a dump holds since the step before of an optimizer.

    Attributes:
        before: file and name of the record of that step; None where the dump does not hold it.
        parts: file and places in it of the records since then, in order, without the step's own record.
        later: places of the records in the file of the step that stand behind its record, up to the next step of the
            optimizer. A layer of which not all parameters get gradients is written at the end of the step.
    """

    before: tuple[Path, str] | None
    parts: Sequence[tuple[Path, range]]
    later: range


class StepSequence:
    """The steps of optimizers, each of which is known by its class and the names of its parameters."""

    def __init__(self, read: Callable[[Path], Dump], files: Sequence[Path]) -> None:
        """Know the steps in `files`; the dumps of steps before them count where they lie beside them."""
        self._read = read
        self._files = frozenset(files)
        self._parameters: dict[tuple[Path, str], tuple[str, ...]] = {}
        self._since: dict[tuple[Path, str], Since] = {}

    @property
    def has_several(self) -> bool:
        """Whether the run judges more than one step."""
        return len({Slot.of(path).step for path in self._files}) > 1

    def since(self, file: Path, record: str) -> Since:
        """Return what stands before the step that `record` in `file` is of."""
        if (file, record) not in self._since:
            self._since[file, record] = self._found_since(file, record)
        return self._since[file, record]

    def _found_since(self, file: Path, record: str) -> Since:
        here = self._names(file)
        at, end = here.index(record), len(here)
        follower = (place for place in range(at + 1, end) if self._is_step(file, here[place], file, record))
        later = range(at + 1, next(follower, end))
        parts: list[tuple[Path, range]] = []
        for path, end in self._back(file, at):
            names = self._names(path)
            for place in range(end - 1, -1, -1):
                if self._is_step(path, names[place], file, record):
                    return Since((path, names[place]), [(path, range(place + 1, end)), *parts], later)
            parts.insert(0, (path, range(end)))
        return Since(None, parts, later)

    def is_followed(self, file: Path, record: str) -> bool:
        """Return whether the run judges a later step of the same optimizer, with nothing missing in between."""
        path: Path | None = file
        names = self._names(file)
        names = names[names.index(record) + 1 :]
        while path is not None:
            if any(self._is_step(path, name, file, record) for name in names):
                return True
            path = _beside(path, 1)
            path = path if path in self._files else None
            names = self._names(path) if path is not None else ()
        return False

    def all_of(self, file: Path, record: str) -> Iterator[tuple[Path, str]]:
        """Return file and name of each step of the optimizer that the run judges, on the same rank."""
        for path in sorted(self._files, key=lambda path: (Slot.of(path).step or 0, path)):
            if _without_step(path) == _without_step(file):
                yield from ((path, name) for name in self._names(path) if self._is_step(path, name, file, record))

    def _back(self, file: Path, end: int) -> Iterator[tuple[Path, int]]:
        """Return (file, number of records) of `file`, and of the dumps of the steps before it up to a missing one."""
        yield file, end
        while (path := _beside(file, -1)) is not None and path.is_file():
            file = path
            yield file, len(self._names(file))

    def _names(self, file: Path) -> Sequence[str]:
        with suppress(DumpError):
            return self._read(file).record_names
        return ()

    def _is_step(self, path: Path, name: str, file: Path, record: str) -> bool:
        """Return whether the record `name` is of the optimizer that `record` is of."""
        if not name.startswith("Optimizer.") or name.startswith(CLIP) or name.split(".")[1] != record.split(".")[1]:
            return False
        return self._parameters_of(path, name) == self._parameters_of(file, record)

    def _parameters_of(self, file: Path, record: str) -> tuple[str, ...]:
        key = file, record
        if key not in self._parameters:
            keywords: object = None
            with suppress(DumpError):
                keywords = self._read(file).record(record).fields.get("input_kwargs")
            arguments = keywords if isinstance(keywords, dict) else {}
            self._parameters[key] = tuple(str(name) for name in arguments if str(name).startswith(_PARAMETERS))
        return self._parameters[key]


def _without_step(file: Path) -> list[str]:
    """Return the folders of a dump but for that of its step, and its name."""
    return [part for part in file.parts if part != f"step{Slot.of(file).step}"]


def _beside(file: Path, by: int) -> Path | None:
    """Return the dump of the step that is `by` later, of the same rank.

    None where the folders do not say which step it is.
    """
    number = Slot.of(file).step
    if number is None or number + by < 0:
        return None
    parts = list(file.parts)
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] == f"step{number}":
            parts[at] = f"step{number + by}"
            return Path(*parts)
    return None
