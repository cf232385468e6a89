"""What a process does to the world outside it, seen by an audit hook (PEP 578)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_msprobe.apis import fact_table

#: Any of these is a deed, whoever does it.
_DEEDS = """
    os.system os.exec os.fork os.forkpty os.posix_spawn os.spawn os.startfile os.kill os.killpg os.remove os.rename
    os.rmdir os.mkdir os.link os.symlink os.truncate os.chmod os.chown os.chflags os.putenv os.unsetenv
    subprocess.Popen pty.spawn ctypes.dlopen ctypes.dlsym ctypes.call_function pickle.find_class mmap.__new__
    code.__new__ function.__new__ builtins.input builtins.breakpoint sys.settrace sys.setprofile webbrowser.open
    sys._current_frames resource.setrlimit
""".split()
_KINDS_OF_DEEDS = ("socket.", "shutil.", "tempfile.", "urllib.", "ftplib.", "smtplib.", "http.", "sqlite3.", "winreg.")
_CODE = ("exec", "compile")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Frameworks load parts of themselves when an operator is first called; PyTorch also SymPy, which looks for faster
#: numbers.
_FRAMEWORKS = "torch functorch mindspore numpy ml_dtypes sympy mpmath gmpy gmpy2 flint".split()
_EXPECTED_IMPORTS = {*sys.stdlib_module_names, *_FRAMEWORKS, "pytest_msprobe"}


class Watch:
    """Collects what happens inside `armed`.

    Attributes:
        events: one line per event, in order.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self._is_armed = False
        sys.addaudithook(self._see)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """While it lasts, events are collected."""
        self._is_armed = True
        try:
            yield
        finally:
            self._is_armed = False

    def take(self) -> list[str]:
        """The events so far, which are then forgotten."""
        taken, self.events = self.events, []
        return taken

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_armed:
            return
        self._is_armed = False  # what this function does is not watched
        try:
            if _is_deed(event, arguments):
                self.events.append(f"{event} {ascii(arguments)[:200]}")
        finally:
            self._is_armed = True


def _is_deed(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "open":
        return _opens_for_writing(*arguments[1:3])
    if event == "import":
        return arguments[0].partition(".")[0] not in _EXPECTED_IMPORTS
    if event in _CODE:
        return not _is_importing()
    return event in _DEEDS or event.startswith(_KINDS_OF_DEEDS)


def _opens_for_writing(mode: str | None, flags: int | None) -> bool:
    if mode is not None:
        return any(letter in mode for letter in "wax+")
    return bool((flags or 0) & _WRITING)


def _is_importing() -> bool:
    """Whether a module is being loaded, whose code is executed and may compile more, or a table of facts is parsed."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(("<frozen importlib", fact_table.__file__)):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
