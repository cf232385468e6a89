"""Where in the training script an API was called: stack.json in both of its shapes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from msprobe_collector.dump_format.files import read_plain
from msprobe_collector.dump_format.nonfinite import quote_nonfinite
from msprobe_collector.dump_format.text import shown
from msprobe_collector.dump_format.truncated_files import decoded_whole

_FRAME = re.compile(
    r"File (?P<file>.+?), line (?P<line>\d{1,18}), in (?P<function>.*?),?\s*\n\s*(?P<source>.*)", re.DOTALL
)
_LIBRARY = re.compile(
    r"[/\\](?:site-packages|dist-packages|mindspore|torch|torch_npu|msprobe|lib[/\\]python[\d.]+)[/\\]"
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


def frame_text(frame: Frame) -> str:
    """A frame as stack.json writes it; one that was read without a file, as it stood there."""
    if not frame.file:
        return frame.source
    return f"File {frame.file}, line {frame.line}, in {frame.function}, \n {frame.source}"


class CallStacks:
    """The call stacks of one dump, by record name; innermost frame first.

    Attributes:
        problem: why there are none, as one line; "" when stack.json was read.
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
            decoded = decoded_whole(quote_nonfinite(read_plain(path)))
        except FileNotFoundError:
            return cls({}, "the dump has no stack.json")
        except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return cls({}, shown(f"{path} cannot be read: {error}"))
        if not isinstance(decoded, dict):
            return cls({}, f"{path} is not an object of call stacks")
        return cls(_grouped(decoded) if decoded.get("0") else _by_name(decoded))

    def frames(self, record: str) -> tuple[Frame, ...]:
        """The stack of `record`, innermost first; empty when unknown."""
        return tuple(_parse_frame(text) for text in self._frames_by_record.get(record, ()))

    def user_frame(self, record: str) -> Frame | None:
        """The innermost frame that is the user's own code, not a library's; None when there is none."""
        texts = self._frames_by_record.get(record, ())
        if texts not in self._user_frames:  # the calls of one line share a stack
            frames = self.frames(record)
            own = (frame for frame in frames if frame.file and not _LIBRARY.search(frame.file))
            self._user_frames[texts] = next(own, None)
        return self._user_frames[texts]


def _grouped(decoded: dict[str, object]) -> dict[str, tuple[str, ...]]:
    """Current shape: `{"0": [[names], [frames]], ...}`, one entry per distinct stack."""
    stacks: dict[str, tuple[str, ...]] = {}
    for group in decoded.values():
        if isinstance(group, list) and len(group) == 2 and isinstance(group[0], list):
            frames = _texts(group[1])
            stacks.update((name, frames) for name in group[0] if isinstance(name, str))
    return stacks


def _by_name(decoded: dict[str, object]) -> dict[str, tuple[str, ...]]:
    """Older shape: `{name: [frames]}`."""
    return {name: _texts(frames) for name, frames in decoded.items()}


def _texts(frames: object) -> tuple[str, ...]:
    return tuple(frame for frame in frames if isinstance(frame, str)) if isinstance(frames, list) else ()


@lru_cache(maxsize=1024)  # calls share lines
def _parse_frame(text: str) -> Frame:
    match = _FRAME.fullmatch(text.strip())
    if match is None:
        return Frame("", 0, "", _on_one_line(text))
    return Frame(shown(match["file"]), int(match["line"]), shown(match["function"]), _on_one_line(match["source"]))


def _on_one_line(source: str) -> str:
    return shown(" ".join(line.strip() for line in source.strip().splitlines()))
