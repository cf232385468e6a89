"""A dump.json on disk: its header, the names of its records, and each record when it is asked for.

- Which Cell an API call ran in: construct.json.
- Where in the training script an API was called: stack.json in both of its shapes.
- Which step and which rank a dump is of, as its folders say.
- Files that a killed process left without their end: cut back to the last whole entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from msprobe_collector.dump_format.manifest import CompiledCode, StepError, gaps_beside
from msprobe_collector.dump_format.records import (
    BackwardRecord,
    ForwardRecord,
    Record,
    decode_backward,
    decode_forward,
    decode_record,
)
from msprobe_collector.dump_format.tensors import TensorFolder
from msprobe_collector.dump_format.unread_files import what_old_file
from msprobe_collector.dump_format.values import (
    DATA_NAME,
    DIFFERS,
    RECOMPUTED,
    SKETCH,
    DumpError,
    printable,
    quote_nonfinite,
)
from msprobe_collector.dump_format.yaml_files import read_plain

if TYPE_CHECKING:
    from msprobe_collector.dump_format.leaves import Leaf
    from msprobe_collector.dump_format.manifest import Manifest
    from msprobe_collector.dump_format.sketch_files import SketchFile
    from msprobe_collector.dump_format.sketches import Sketch

#: A header is data of strangers: a larger world is none.
_MOST_RANKS = 1 << 20
STEP = re.compile(r"step(\d+)")
RANK = re.compile(r"rank(\d+)?")


def natural(path: Path) -> list[tuple[int, str]]:
    """Give a sort key that puts step2 before step10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path))]


@dataclass(frozen=True, slots=True)
class Slot:
    """Step and rank of a dump, as its folders say; None where they do not."""

    step: int | None
    rank: int | None

    @classmethod
    @lru_cache(maxsize=1024)  # asked for every record of a dump
    def of(cls, path: Path) -> Slot:
        """Step and rank of the dump at `path`, from the innermost folders that name one."""
        return cls(number_in(path, STEP), number_in(path, RANK))

    def agrees(self, other: Slot) -> bool:
        """Return whether no number that both know differs."""
        return all(
            mine is None or theirs is None or mine == theirs
            for mine, theirs in ((self.step, other.step), (self.rank, other.rank))
        )

    def __str__(self) -> str:
        numbers = (("step", self.step), ("rank", self.rank))
        texts = [f"{name} {number}" for name, number in numbers if number is not None]
        return " ".join(texts) or "a dump without numbers"


def number_in(path: Path, pattern: re.Pattern[str]) -> int | None:
    """Return the number in the innermost folder of `path` whose name fits `pattern`, or None."""
    for part in reversed(path.parts[:-1]):
        match = pattern.fullmatch(part)
        if match is not None and match.group(1) is not None:
            return int(match.group(1))
    return None


_TRUNCATED = "was truncated while it was written: its end is missing"
#: What stands before the key of an entry: the collector here writes one per line, the existing one indents by two.
_BEFORE_ENTRY = (b',\n"', b',\n  "')


def repaired(text: bytes, *, brackets: int) -> bytes | None:
    """`text` cut before its last entry, which is not whole, and closed by `brackets` brackets; None without any."""
    end = max(text.rfind(start) for start in _BEFORE_ENTRY)
    return None if end < 0 else text[:end] + b"\n" + b"}" * brackets


#: No construct.json or stack.json is larger.
_MOST_BYTES = 1 << 32


def decoded_whole(text: bytes) -> tuple[object, bool]:
    """What JSON `text` holds, and whether it is whole: without the last entry when its end is truncated.

    Raises msgspec.DecodeError.
    """
    try:
        return msgspec.json.decode(text), True
    except msgspec.DecodeError:
        if (whole := repaired(text, brackets=1)) is None:
            raise
        return msgspec.json.decode(whole), False


def read_construct(path: Path) -> dict[str, str | None]:
    """Parent of every record in a construct.json: the Cell that it ran in, or None at the top.

    A Megatron entry `[parent, micro_step]` gives its parent. Empty for level L1, which records no parents.

    Raises:
        DumpError: the file cannot be read or has another form.
    """
    return _parents_in(path)[0]


def _parents_in(path: Path) -> tuple[dict[str, str | None], bool]:
    """Return the parents in a construct.json, and whether it has its end. Raises DumpError."""
    try:
        decoded, is_whole = decoded_whole(_read(path, most_bytes=_MOST_BYTES))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DumpError(f"is not valid JSON: {error}", file=str(path)) from None
    if not isinstance(decoded, dict):
        raise DumpError(f"expected an object of parents, found {type(decoded).__name__}", file=str(path))
    parents = {child: _parent(parent, child, path) for child, parent in decoded.items() if child != _MICRO_STEPS}
    return parents, is_whole


_MICRO_STEPS = "megatron_micro_step_number"


def _parent(encoded: object, child: str, path: Path) -> str | None:
    if isinstance(encoded, list) and encoded:
        encoded = encoded[0]
    if encoded is None or isinstance(encoded, str):
        return encoded
    raise DumpError(f"expected the name of the parent or null, found {encoded!r}", file=str(path), record=child)


_FRAME = re.compile(
    r"File (?P<file>.+?), line (?P<line>\d{1,18}), in (?P<function>.*?),?\s*\n\s*(?P<source>.*)", re.DOTALL
)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
#: Files of the frameworks, of collectors and of Python, installed or built from source. Installed models are none.
_FRAMEWORK = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?:torch|torch_npu|mindspore|msadapter|numpy|msprobe|msprobe_collector)[/\\]"
    r"|[/\\](?:torch_npu|msprobe|msprobe_collector)[/\\]"
    r"|[/\\]torch[/\\](?:_\w+|nn|autograd|utils|optim|distributed|func|fx|jit|amp|ao|cuda|linalg|functional|overrides)[/\\.]"
    r"|[/\\]mindspore[/\\](?:_\w+|nn|ops|mint|common|train|parallel|numpy|scipy|experimental|communication|amp)[/\\.]"
    r"|[/\\]lib[/\\]python[\d.]+[/\\](?!(?:site|dist)-packages[/\\])"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a call stack: file, line number, function and the source text of that line, safe to show."""

    file: str
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}: {self.source}"

    @property
    def told(self) -> str:
        """The line for explanations, with its source below."""
        return f"called from {self.file}:{self.line}, in {self.function}:\n    {self.source}"


@dataclass(frozen=True, slots=True)
class CallSite(Frame):
    """The line of an installed package, such as a model's, that made a call, and the line of the script behind it."""

    script: Frame

    def __str__(self) -> str:
        return f"{Frame.__str__(self)}, called from {self.script}"

    @property
    def told(self) -> str:
        """Both lines for explanations."""
        return f"{Frame(self.file, self.line, self.function, self.source).told}\n{self.script.told}"


def own_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Those of `frames` that belong neither to a framework nor to Python: of scripts and installed models."""
    return [frame for frame in frames if frame.file and not _FRAMEWORK.search(frame.file)]


def script_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost of `frames`, the innermost first, that is the script's, and no framework's or package's."""
    site = _call_site(own_frames(frames))
    return site.script if isinstance(site, CallSite) else site


def frame_text(frame: Frame) -> str:
    """A frame as stack.json writes it; one that was read without a file, as it stood there."""
    if not frame.file:
        return frame.source
    return f"File {frame.file}, line {frame.line}, in {frame.function}, \n {frame.source}"


#: The file of PyTorch that calls the backward of a torch.autograd.Function.
_AUTOGRAD = "torch/autograd/function.py"


class CallStacks:
    """The call stacks of one dump, by record name; innermost frame first.

    Attributes:
        problem: why there are none, or not all, as one line; "" when stack.json was read.
    """

    def __init__(self, frames_by_record: dict[str, tuple[str, ...]], problem: str = "") -> None:
        self._frames_by_record = frames_by_record
        self._user_frames: dict[tuple[str, ...], Frame | None] = {}
        self.problem = problem

    @classmethod
    def beside(cls, dump_path: Path) -> CallStacks:
        """The stacks in the stack.json beside `dump_path`; a missing or broken file gives none and a `problem`."""
        path = dump_path.parent / "stack.json"
        try:
            decoded, is_whole = decoded_whole(quote_nonfinite(read_plain(path, most_bytes=_MOST_BYTES)))
        except FileNotFoundError:
            return cls({}, "the dump has no stack.json")
        except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return cls({}, printable(f"{path} cannot be read: {error}"))
        if not isinstance(decoded, dict):
            return cls({}, f"{path} is not an object of call stacks")
        problem = "" if is_whole else f"{path} {_TRUNCATED}"
        if decoded.get("0"):
            return cls(_grouped(decoded), problem)
        # the older shape: {name: [frames]}
        return cls({name: _texts(frames) for name, frames in decoded.items()}, problem)

    def frames(self, record: str) -> tuple[Frame, ...]:
        """Return the stack of `record`, innermost first; empty when unknown."""
        return tuple(map(_parse_frame, self._frames_by_record.get(record, ())))

    def user_frame(self, record: str) -> Frame | None:
        """The innermost frame that is no framework's, with the script's where that is another; None without any."""
        texts = self._frames_by_record.get(record, ())
        if texts not in self._user_frames:  # the calls of one line share a stack
            self._user_frames[texts] = _call_site(own_frames(self.frames(record)))
        return self._user_frames[texts]

    def user_line(self, call: str) -> str:
        """`train.py:25`, the line of that frame of a call's forward; "" without any."""
        frame = self.user_frame(f"{call}.forward")
        return "" if frame is None else f"{frame.file}:{frame.line}"

    def written_backwards(self) -> Iterator[Frame]:
        """A line of each script that ran in the backward of an own torch.autograd.Function."""
        files: set[str] = set()
        for texts in dict.fromkeys(self._frames_by_record.values()):
            if any(_AUTOGRAD in text for text in texts):
                for frame, caller in pairwise(map(_parse_frame, texts)):
                    is_written = frame.function == "backward" and caller.file.endswith(_AUTOGRAD)
                    if is_written and frame.file not in files and own_frames([frame]):
                        files.add(frame.file)
                        yield frame


def _call_site(frames: Sequence[Frame]) -> Frame | None:
    if not frames:
        return None
    first, script = frames[0], next((frame for frame in frames if not _INSTALLED.search(frame.file)), frames[0])
    if script is first:
        return first
    return CallSite(first.file, first.line, first.function, first.source, script)


def _grouped(decoded: dict[str, object]) -> dict[str, tuple[str, ...]]:
    """Current shape: `{"0": [[names], [frames]], ...}`, one entry per distinct stack."""
    stacks: dict[str, tuple[str, ...]] = {}
    for group in decoded.values():
        if isinstance(group, list) and len(group) == 2:
            stacks |= dict.fromkeys(_texts(group[0]), _texts(group[1]))
    return stacks


def _texts(frames: object) -> tuple[str, ...]:
    if not isinstance(frames, list):
        return ()
    return tuple(frame for frame in frames if isinstance(frame, str))


@lru_cache(maxsize=1024)  # calls share lines
def _parse_frame(text: str) -> Frame:
    match = _FRAME.fullmatch(text.strip())
    if match is None:
        return Frame("", 0, "", _on_one_line(text))
    return Frame(
        printable(match["file"]), int(match["line"]), printable(match["function"]), _on_one_line(match["source"])
    )


def _on_one_line(source: str) -> str:
    return printable(" ".join(line.strip() for line in source.strip().splitlines()))


TASKS = frozenset(
    {"statistics", "tensor", "structure", "overflow_check", "exception_dump", "acc_check", "diff_check", "nan_check"}
)
FRAMEWORKS = frozenset({"mindspore", "mindtorch", "pytorch"})
_SHAPE = re.compile(rb'"shape"\s*:\s*\[([^\]]*)\]')
_NUMBER = re.compile(rb"\d{1,15}")
_TENSOR_TYPE = re.compile(rb'"type"\s*:\s*"(torch|mindspore)\.')
_HALF = re.compile(rb'"dtype"\s*:\s*"(?:torch\.)?b?float16"', re.IGNORECASE)
_SKETCHED = re.compile(rb'"%s"\s*:\s*(?:\{\s*"row"\s*:\s*)?(\d{1,15})' % SKETCH.encode())
_RECOMPUTED = re.compile(rb'"%s"\s*:\s*\{[^{}]*"%s"' % (RECOMPUTED.encode(), DIFFERS.encode()))


class _File(msgspec.Struct):
    """Top level of dump.json. Records stay undecoded slices of the text: 100,000 of them cost 10 MB, not 1 GB."""

    data: dict[str, msgspec.Raw]
    task: str
    framework: str | None = None
    level: str | None = None
    dump_data_dir: str | None = None
    ranks: Any = None


class Dump:
    """One dump.json, read once and decoded record by record.

    Attributes:
        path: the file.
        task: `statistics`, `tensor`, ... as recorded.
        framework: `mindspore`, `mindtorch` or `pytorch`; where the header does not say, that of the first tensor.
        level: `L0`, `L1`, `mix`, ..., or None when the dump does not say.
        problem: one line on what the file lacks, as after a killed training; "" when it is whole.
        lost: one line where the file names tensor files and there is not one of them; "" otherwise. Such a dump is read
            as one of statistics.
        holds_real_data: whether it holds values of tensors, not their statistics alone.
        holds_parts: whether it holds parts of DTensors.
        holds_sketches: whether records name sketches of their tensors.
        ranks: what the header says of the rank and its process groups, as it stands there; None without.
    """

    def __init__(self, path: Path, data_dirs: Sequence[Path] = ()) -> None:
        """Read the file. `data_dirs` are folders outside the dump in which its tensors may be.

        Raises:
            DumpError: it cannot be read, is not JSON, or has not the form of a dump.
        """
        self.path = path
        text = _read(path)
        content, self.problem = _parse(text, path)
        self.task = _one_of(content.task, TASKS, "task", path)
        self.framework = _one_of(content.framework or _framework_of_values(text), FRAMEWORKS, "framework", path)
        self.level = content.level
        self.ranks = content.ranks
        self._dump_data_dir = content.dump_data_dir
        self._data_dirs = tuple(data_dirs)
        self._records: Mapping[str, Any] = content.data
        self.holds_parts = b'"dtensor"' in text
        self.holds_sketches = _SKETCHED.search(text) is not None
        names_files, self.lost = b'"data_name"' in text, ""
        if names_files and self.tensors.is_lost:
            folder = printable(str(self.tensors.folder))
            self.lost = f"{path}: there are no tensor files in {folder}: only the statistics of the dump are used"
            self.task = "statistics"
        self.holds_real_data = not self.lost and (self.task == "tensor" or names_files)

    @property
    def record_names(self) -> list[str]:
        """Names of all records, in the order of the file."""
        return list(self._records)

    def raw(self, record_name: str) -> bytes:
        """Return the text of a record that is there, as the file has it."""
        return bytes(self._records[record_name])

    def __contains__(self, record_name: str) -> bool:
        return record_name in self._records

    def forward(self, call: str) -> ForwardRecord | None:
        """The forward record of the API call named `call`, or None. Raises DumpError for a malformed one."""
        name = f"{call}.forward"
        if name not in self._records:
            return None
        return decode_forward(self._decoded(name, "forward record"), file=str(self.path), record=name)

    def backward(self, call: str) -> BackwardRecord | None:
        """The backward record of the API call named `call`, or None. Raises DumpError for a malformed one."""
        name = f"{call}.backward"
        if name not in self._records:
            return None
        return decode_backward(self._decoded(name, "backward record"), file=str(self.path), record=name)

    def shapes(self, record_name: str) -> list[tuple[int, ...]]:
        """Shapes of the tensors of a record in their order, found in its text: nothing is decoded or checked."""
        return [tuple(map(int, _NUMBER.findall(text))) for text in _SHAPE.findall(self._text(record_name))]

    def holds_half(self, record_name: str) -> bool:
        """Whether a record has tensors of float16 or bfloat16, found in its text as `shapes` are."""
        return _HALF.search(self._text(record_name)) is not None

    def is_recomputed_otherwise(self, record_name: str) -> bool:
        """Return what `BackwardRecord` says, found in the text of a record as `shapes` are."""
        return _RECOMPUTED.search(self._text(record_name)) is not None

    def _text(self, record_name: str) -> memoryview:
        """Return the text of a record; an empty one where there is no such record."""
        return memoryview(self._records.get(record_name, b""))

    @cached_property
    def stacks(self) -> CallStacks:
        """Call stacks of the stack.json beside the dump; empty when there is none or it cannot be read."""
        return CallStacks.beside(self.path)

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest beside the dump; None where there is none that can be used."""
        from msprobe_collector.dump_format.manifest import manifest_beside

        return manifest_beside(self.path)[0]

    @cached_property
    def tensors(self) -> TensorFolder:
        """The tensor files: in the recorded `dump_data_dir` where that may be read, else beside dump.json."""
        return TensorFolder.of_dump(self.path.parent, self._dump_data_dir, self._data_dirs)

    @cached_property
    def parents(self) -> dict[str, str | None]:
        """The Cell that each record ran in; empty for level L1 and where construct.json is missing or broken."""
        return self._parents_and_problem[0]

    @cached_property
    def _parents_and_problem(self) -> tuple[dict[str, str | None], str]:
        path = self.path.parent / "construct.json"
        if not os.path.lexists(path):
            return {}, ""
        try:
            parents, is_whole = _parents_in(path)
        except DumpError as error:
            return {}, str(error)
        return parents, "" if is_whole else f"{path} {_TRUNCATED}"

    def damage(self) -> list[str]:
        """One line for each file of the dump that is there and could not be read whole; reads all of them."""
        has_stacks = os.path.lexists(self.path.parent / "stack.json")
        stacks = self.stacks.problem if has_stacks else ""
        problems = (self.problem, self._parents_and_problem[1], stacks, self._sketch_damage())
        return list(map(printable, filter(None, problems)))

    def ranks_of_step(self) -> list[int]:
        """The ranks that wrote a dump of this step, as far as the header says; empty where it does not."""
        header = self.ranks if isinstance(self.ranks, dict) else {}
        size, collected = header.get("world_size"), header.get("collected")
        if type(size) is not int or not 1 < size <= _MOST_RANKS:
            return []
        try:
            wanted = [(max(0, int(first)), min(size, int(last) + 1)) for first, last in collected or [(0, size)]]
        except (TypeError, ValueError):
            return []
        return sorted({rank for first, end in wanted for rank in range(first, end)})

    @property
    def ended_in(self) -> StepError | None:
        """The exception that ended the step, as run.json says; None where it says of none."""
        return self._gaps[1]

    @property
    def compiled(self) -> tuple[CompiledCode, ...]:
        """What ran as compiled code, as run.json says, so that calls inside it are not in the dump."""
        return self._gaps[0]

    @cached_property
    def _gaps(self) -> tuple[tuple[CompiledCode, ...], StepError | None]:
        return gaps_beside(self.path)

    @cached_property
    def sketches(self) -> SketchFile:
        """The side file with the sketches of the dump.

        Raises:
            DumpError: it cannot be read, or not used.
        """
        from msprobe_collector.dump_format.sketch_files import SKETCH_FILE, SketchFile

        return SketchFile(self.path.parent / SKETCH_FILE)

    def sketch(self, leaf: Leaf) -> Sketch | None:
        """Return the sketch of a leaf of a record of this dump; None where the dump has none.

        Raises:
            DumpError: it cannot be read, or is not one of this value: one line, of the leaf or of the side file.
        """
        if leaf.tensor is None or leaf.tensor.sketch is None:
            return None
        return self.sketches.sketch(leaf.tensor, leaf.place)

    def _sketch_damage(self) -> str:
        if not self.holds_sketches:
            return ""
        try:
            rows = len(self.sketches.numbers)
        except DumpError as error:
            return str(error)
        named = [int(row) for raw in self._records.values() for row in _SKETCHED.findall(memoryview(raw))]
        missing = sum(row >= rows for row in named)
        return f"{self.sketches.path} lacks the sketches of {missing} of {len(named)} values" if missing else ""

    @cached_property
    def orders(self) -> dict[str, int]:
        """The place of each record in the file, from 0, which is that in the execution."""
        return dict(zip(self._records, count()))

    def ancestors(self, name: str) -> tuple[str, ...]:
        """Records of the Cells that the record `name` ran in, outermost first; empty where construct.json has none."""
        names: list[str] = []
        parent = self.parents.get(name)
        while parent is not None and parent not in names:
            names.append(parent)
            parent = self.parents.get(parent)
        return tuple(reversed(names))

    def record(self, name: str) -> Record:
        """Return the record of any kind named `name`; its malformed values stand in it as such.

        Raises:
            DumpError: it cannot be decoded.
        """
        return decode_record(self._decoded(name, "record"), file=str(self.path), record=name)

    def _decoded(self, name: str, what: str) -> Any:
        try:
            record = msgspec.json.decode(self._records[name])
            return _without_files(record) if self.lost else record
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise DumpError(f"the {what} cannot be decoded: {error}", file=str(self.path), record=name) from None


def _without_files(encoded: Any) -> Any:
    """`encoded` without the names of tensor files."""
    if isinstance(encoded, list):
        return [_without_files(item) for item in encoded]
    if isinstance(encoded, dict):
        return {key: _without_files(item) for key, item in encoded.items() if key != DATA_NAME}
    return encoded


def _framework_of_values(text: bytes) -> str:
    """Return the framework whose type the first tensor of a dump has; MindSpore without one, as older dumps were."""
    match = _TENSOR_TYPE.search(text)
    return "pytorch" if match is not None and match[1] == b"torch" else "mindspore"


def _read(path: Path, *, most_bytes: int | None = None) -> bytes:
    try:
        return read_plain(path, most_bytes=most_bytes)
    except OSError as error:
        raise DumpError(f"cannot be read: {error.strerror}", file=str(path)) from None


def _parse(text: bytes, path: Path) -> tuple[_File, str]:
    quoted = quote_nonfinite(text)
    try:
        return msgspec.json.decode(quoted, type=_File), ""
    except msgspec.ValidationError as error:
        what = what_old_file(text) or f"is not a dump.json of an API dump: {error}"
        raise DumpError(what, file=str(path)) from None
    except msgspec.DecodeError as error:
        if (recovered := _recovered(quoted)) is not None:
            problem = f"{path} was truncated while it was written: its first {len(recovered.data)} records are read"
            return recovered, problem
        cut = " (incomplete file?)" if "truncated" in str(error) else ""
        what = what_old_file(text) or f"is not valid JSON: {error}{cut}; dump the step again"
        raise DumpError(what, file=str(path)) from None
    except RecursionError:
        raise DumpError("is nested too deeply to be a dump", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise DumpError(f"is not UTF-8 text: {error}", file=str(path)) from None


def _recovered(quoted: bytes) -> _File | None:
    """What is whole of a file that lacks its end, or None when nothing is or its fault is another."""
    text = repaired(quoted, brackets=2)
    try:
        return None if text is None else msgspec.json.decode(text, type=_File)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _one_of(value: str, allowed: frozenset[str], field: str, path: Path) -> str:
    if value not in allowed:
        text = f"unknown {field} {value!r}; known are {', '.join(sorted(allowed))}"
        raise DumpError(text, file=str(path), field=field)
    return value
