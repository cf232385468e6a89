"""Where in the training script a call came from: taken in microseconds, put into words once per place."""

from __future__ import annotations

import json
import linecache
import sys
from types import CodeType, FrameType

from msprobe_collector.dump_format.stacks import Frame, frame_text
from msprobe_collector.dump_format.writing.growing_file import GrowingFile

#: Names of one stack that wait for their group: what stack.json can lack after a kill, and all that stays in memory.
_MOST_WAITING = 4096
_Place = tuple[int, int]


class StackRecorder:
    """Call stacks of forward records, grouped in stack.json by identical stack.

    A stack is recognised by its code objects and their current instructions, so that a loop costs no formatting.
    Records of one stack form a group when `flush` is called or too many wait: one stack may have several groups.
    """

    def __init__(self, own_package: str, hidden: tuple[str, ...] = ()) -> None:
        """Leave out the frames of files below `own_package`, and those whose source line has one of `hidden`."""
        self._own_package = own_package
        self._hidden = hidden
        self._texts: dict[tuple[_Place, ...], str] = {}
        self._frames: dict[_Place, str | None] = {}
        # Places are ids of code objects, which stay theirs only while the objects live.
        self._kept: dict[int, CodeType] = {}
        self._waiting: dict[str, list[str]] = {}
        self._waiting_count = 0
        self._groups = 0

    def capture(self) -> str:
        """The caller's stack as JSON text, innermost frame first."""
        places = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            places.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        key = tuple(places)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self._written(sys._getframe(1))
        return text

    def add(self, record: str, stack: str, file: GrowingFile) -> None:
        """Note that `record` has the captured `stack`; `file` is the stack.json of its step."""
        self._waiting.setdefault(stack, []).append(record)
        self._waiting_count += 1
        if self._waiting_count >= _MOST_WAITING:
            self.flush(file)

    def flush(self, file: GrowingFile) -> None:
        """Write the groups that wait. Raises OSError; they are given up then."""
        waiting, self._waiting, self._waiting_count = self._waiting, {}, 0
        for stack, names in waiting.items():
            file.add(f'"{self._groups}": [{json.dumps(names)}, {stack}]')
            self._groups += 1

    def restart(self) -> None:
        """Begin another step's file."""
        self._groups = 0

    def _written(self, innermost: FrameType | None) -> str:
        texts = []
        frame = innermost
        while frame is not None:
            place = (id(frame.f_code), frame.f_lasti)
            if place not in self._frames:
                self._kept[id(frame.f_code)] = frame.f_code
                self._frames[place] = self._frame_text(frame)
            if (text := self._frames[place]) is not None:
                texts.append(text)
            frame = frame.f_back
        return json.dumps(texts)

    def _frame_text(self, frame: FrameType) -> str | None:
        path = frame.f_code.co_filename
        source = linecache.getline(path, frame.f_lineno).strip()
        if not source or path.startswith(self._own_package) or any(text in source for text in self._hidden):
            return None
        return frame_text(Frame(path, frame.f_lineno, frame.f_code.co_name, source))
