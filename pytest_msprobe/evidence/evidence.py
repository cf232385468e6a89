"""What a failing API call leaves behind, in plain arrays and names: the content of error data and of reproducers."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

from msprobe_collector.dump_format import ApiName, Direction, Frame
from pytest_msprobe.engines.protocol import Array

if TYPE_CHECKING:
    pass

#: ("input", 0), ("kwargs", "weight"); for outputs without the first word.
ValuePath: TypeAlias = tuple[Union[str, int], ...]
Leaves: TypeAlias = tuple[tuple[ValuePath, Any], ...]

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")
_MOST_STEM_CHARACTERS = 180


@dataclass(frozen=True, slots=True)
class NumpyValue:
    """An argument that is a NumPy array and not a tensor."""

    array: Array


@dataclass(frozen=True, slots=True)
class Gradients:
    """The backward of a failing call.

    Attributes:
        incoming: gradient of the i-th top-level output tensor; None where there is none.
        wanted: the arguments that were differentiated.
        entries: for each of them its index in a backward record's `output`, or its path in `other_gradients`.
        tested, bench: their gradients; None when that side raised.
    """

    incoming: tuple[Array | None, ...]
    wanted: tuple[ValuePath, ...]
    entries: tuple[int | str, ...]
    tested: tuple[Array | None, ...] | None
    bench: tuple[Array | None, ...] | None

    def label(self, position: int) -> str:
        """Name of one gradient as in the details table, without `output.`."""
        return str(self.entries[position])


@dataclass(frozen=True, slots=True)
class Evidence:
    """A failing API call: what it got, what came out, and what should have.

    Attributes:
        dump: path of the dump.json; `framework`: who ran the training.
        api: name of the call.
        arguments, keywords: arrays, `NumpyValue`, `Dtype`, plain values, slices, tuples and dicts of them.
        attributes: of a Primitive, likewise; None where the dump does not say.
        tested, bench: forward outputs, the benchmark's in float64; None when that side raised.
        gradients: of a failing backward.
        frames: call stack, innermost first.
        called_from: the frame of it that is the user's own.
        device, bench_name: who was tested and against what.
        verdicts: what is said about each direction.
        inputs: where the input values come from, for people.
        edge_case: name of the edge case that the call is, "" for a recorded one.
        is_strided: whether the device got tensors as transposed views.
        is_in_place: whether the call writes to its first argument.
        rounded: the benchmark value as a perfect device would return it, given (benchmark, tested).
        torch_text: the PyTorch call as text for the texts of arguments and keywords; None where there is no plain one.
    """

    dump: str
    framework: str
    api: ApiName
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    attributes: Mapping[str, Any] | None
    tested: Leaves | None
    bench: Leaves | None
    gradients: Gradients | None
    frames: tuple[Frame, ...]
    called_from: Frame | None
    device: str
    bench_name: str
    verdicts: dict[Direction, str]
    inputs: str
    edge_case: str
    is_strided: bool
    is_in_place: bool
    rounded: Callable[[Any, Any], Any]
    torch_text: Callable[[Sequence[str], Mapping[str, str]], str | None]


class EvidenceWriter(Protocol):
    """Something that keeps evidence on disk."""

    def save(self, evidence: Evidence) -> str:
        """Keep it; one line on where, or on why not.

        Raises:
            OSError: it could not be written.
        """


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
        found = dump_folder(dump, dumps) / f"edge_{edge_case}"
        while found in taken:  # error data of edge cases, checked with edge cases
            found = found.with_name(f"{found.name}_2")
        return found
    if len(set(dumps)) < 2 or dump not in dumps:
        return Path()
    common = os.path.commonpath([path.parent for path in dumps])
    folder = dump.parent.relative_to(common)
    return folder if dump.name == "dump.json" else folder / file_stem(dump.stem)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
