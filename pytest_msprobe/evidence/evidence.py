"""What a failing API call leaves behind: the content of error data and of reproducers, and who writes it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msprobe_collector.dump_format import Direction, Dump, tensor_positions
from pytest_msprobe.cases.case import Case
from pytest_msprobe.engines.protocol import Array, LeafPath, Output
from pytest_msprobe.verdicts import Verdict

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")
_MOST_STEM_CHARACTERS = 180


@dataclass(frozen=True, slots=True)
class BothResults:
    """What both sides computed; None where one raised.

    Attributes:
        tested, bench: forward outputs, the benchmark's in float64.
        incoming: gradients that the backward got, of the i-th top-level output tensor; None when this is about the
            forward.
        tested_gradients, bench_gradients: in the order of `Case.wanted`.
    """

    tested: tuple[Output, ...] | None = None
    bench: tuple[Output, ...] | None = None
    incoming: tuple[Array | None, ...] | None = None
    tested_gradients: tuple[Array | None, ...] | None = None
    bench_gradients: tuple[Array | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A failing API call: what it got, what came out, and what should have.

    Attributes:
        dump, case: where it was recorded, and what it is called with.
        results: what came out.
        verdicts: what is said about each direction, the failing one last.
        seed: of random inputs.
    """

    dump: Dump
    case: Case
    results: BothResults
    verdicts: Mapping[Direction, Verdict]
    seed: int

    @property
    def entries(self) -> list[int | str]:
        """Of each of `case.wanted` the index in a backward record's `output`, or the path in `other_gradients`."""
        positions = tensor_positions(self.case.forward.arguments or ())
        entries: dict[LeafPath, int | str] = {("input", position): index for index, position in enumerate(positions)}
        entries |= self.case.pairing.entries
        return [entries.get(path, ".".join(map(str, path))) for path in self.case.wanted]


class EvidenceWriter(Protocol):
    """Something that keeps evidence on disk."""

    def save(self, evidence: Evidence) -> str:
        """Keep it; one line on where, or on why not.

        Raises:
            OSError: it could not be written.
        """


@dataclass(frozen=True, slots=True)
class FailureKeeper:
    """Keeps what failing calls of a run computed.

    Attributes:
        writers: where it goes.
        seed: of random inputs.
    """

    writers: tuple[EvidenceWriter, ...]
    seed: int

    def keep(
        self, dump: Dump, case: Case, results: BothResults, verdicts: Mapping[Direction, Verdict]
    ) -> tuple[str, ...]:
        """What each writer says about the evidence of a failing call; never raises for a disk that fails."""
        evidence = Evidence(dump, case, results, verdicts, self.seed)
        lines = []
        for writer in self.writers:
            try:
                lines.append(writer.save(evidence))
            except OSError as error:
                lines.append(f"{type(writer).__name__}: not saved: {error.strerror or error}")
        return tuple(lines)


def file_stem(name: str) -> str:
    """`name` as part of a file name: unusual characters become %XX, and a long one ends in a digest of the whole."""
    stem = _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in _bytes(match.group())), name)
    if len(stem) <= _MOST_STEM_CHARACTERS:
        return stem
    return f"{stem[: _MOST_STEM_CHARACTERS - 17]}.{hashlib.sha256(_bytes(name)).hexdigest()[:16]}"


def dump_folder(dump: Path, dumps: Sequence[Path], edge_case: str = "") -> Path:
    """Where what belongs to `dump` stands among that of all `dumps`: `.` for a single one, else as the CSVs name it.

    What belongs to an edge case stands in a folder `edge_nan` there, since its record has the name of the recorded one.
    """
    if edge_case:
        taken = {dump_folder(other, dumps) for other in dumps}
        folder = dump_folder(dump, dumps) / f"edge_{edge_case}"
        while folder in taken:  # error data of edge cases, checked with edge cases
            folder = folder.with_name(f"{folder.name}_2")
        return folder
    if len(set(dumps)) < 2 or dump not in dumps:
        return Path()
    common = os.path.commonpath([path.parent for path in dumps])
    folder = dump.parent.relative_to(common)
    return folder if dump.name == "dump.json" else folder / file_stem(dump.stem)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
