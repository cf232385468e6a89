"""Counts the way of one record: files of this project that it passes through, moves between them, the deepest call.

    python -m tools.benchmarks.way DUMP [PYTEST_OPTION ...] [--calls]

A pytest plugin watches every function call (sys.setprofile) from the setup of one item to its last report. An item in
the middle of the run is watched, when everything has been imported and every cache is filled. Frames of other packages
are left out: a call of ours that pytest or NumPy passes on counts as one of the function of ours below it.

- *files*: modules in which a function is called.
- *moves*: calls of a function in another module than that of the calling function.
- *deepest call*: most functions of ours on the stack at once.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import msprobe_collector
import pytest_msprobe

#: The packages as they are imported: an installation need not be this clone.
_PACKAGES = [Path(package.__file__).parent for package in (pytest_msprobe, msprobe_collector)]
_OURS = tuple(f"{folder}/" for folder in _PACKAGES)


class Way:
    """What `sys.setprofile` tells of the functions of this project.

    Attributes:
        files: modules that functions were called in.
        moves: number of calls by (calling module, called module), which differ.
        calls: number of calls by (calling function, called function).
        deepest: most functions on the stack at once.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.moves: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.deepest = 0
        self._stack: list[CodeType] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """See `sys.setprofile`."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(_OURS):
            return
        if event == "return":
            if self._stack and self._stack[-1] is code:
                self._stack.pop()
            return
        file = _module(code)
        self.files.add(file)
        if self._stack:
            caller = self._stack[-1]
            self.calls[f"{_module(caller)}:{_name(caller)}", f"{file}:{_name(code)}"] += 1
            if _module(caller) != file:
                self.moves[_module(caller), file] += 1
        self._stack.append(code)
        self.deepest = max(self.deepest, len(self._stack))


class WayPlugin:
    """Watches one item of a run.

    Attributes:
        way: of the item; None before it ran.
        node_id: which item that was.
    """

    def __init__(self) -> None:
        self.way: Way | None = None
        self.node_id = ""
        self._seen = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch the item in the middle."""
        self._seen += 1
        if self._seen != item.session.testscollected // 2:
            return (yield)
        self.way, self.node_id = Way(), item.nodeid
        sys.setprofile(self.way)
        try:
            return (yield)
        finally:
            sys.setprofile(None)


def watch(options: list[str]) -> WayPlugin:
    """The plugin after one run with these options. SystemExit when no item ran."""
    plugin = WayPlugin()
    with tempfile.TemporaryDirectory(prefix="msprobe-way-") as folder:
        out = [f"--msprobe-out={folder}", f"--rootdir={folder}", "-p", "no:hypothesispytest", "-p", "no:pytest_cov"]
        pytest.main([*options, "-q", *out], plugins=[plugin])
    if plugin.way is None:
        raise SystemExit("no item ran")
    return plugin


def _module(code: CodeType) -> str:
    file = Path(code.co_filename)
    return next(str(file.relative_to(folder.parent)) for folder in _PACKAGES if file.is_relative_to(folder))


def _name(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified names here


def _show(counts: Counter[Any]) -> None:
    for (caller, called), count in sorted(counts.items(), key=lambda entry: -entry[1]):
        print(f"{count:4}  {caller} -> {called}")


def main() -> None:
    """The command line."""
    if len(sys.argv) == 1 or "--help" in sys.argv:
        print(__doc__)
        return
    dump, *options = (option for option in sys.argv[1:] if option != "--calls")
    plugin = watch([f"--msprobe-dump={dump}", *options])
    assert plugin.way is not None  # or watch had ended
    way = plugin.way
    if "--calls" in sys.argv:
        _show(way.calls)
    print(
        f"{plugin.node_id}: {len(way.files)} files, {way.moves.total()} moves between files, "
        f"deepest call {way.deepest}, {way.calls.total()} calls"
    )


if __name__ == "__main__":
    main()
