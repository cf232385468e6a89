"""What a process is: the script that it runs, its environment variables, and its place among those of its training.

- Its command line without secrets, and the git revision of its repository, read from files.
- The exception that ended a step: class, message, and the line of the script.
- Environment variables that change what a training computes. Only these are read: others may hold
  secrets.
- A training script, or a module, that runs as the main one of a process of ours.
"""

from __future__ import annotations

import functools
import os
import re
import runpy
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from types import FrameType, ModuleType
from typing import Any

from msprobe_collector.dump_format.dump import Frame, script_frame

#: Names of options whose values are not written.
_SECRET = re.compile(r"(token|secret|passw|credential|auth|private|api[-_]?key|access[-_]?key)", re.IGNORECASE)
#: Name and password in an address.
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_HIDDEN, _DUMP = "***", "DUMP"
_MOST_ARGUMENTS, _MOST_CHARACTERS = 200, 500
#: Exceptions that end a block of code as it is meant to end.
_REGULAR = (GeneratorExit, StopIteration, StopAsyncIteration)
_REVISION = re.compile(r"[0-9a-f]{40,64}")
#: A file of git that names something is no larger; packed references of a large repository are.
_MOST_BYTES, _MOST_PACKED = 4096, 1 << 24


@lru_cache(4096)
def has_secret_name(name: str) -> bool:
    """Whether what is called so may be a secret."""
    return _SECRET.search(name) is not None


def script_facts(dump_path: Path) -> dict[str, object]:
    """The command line, and the revision of the repository that the script is in."""
    facts: dict[str, object] = {"command": command_line(sys.argv, dump_path)}
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(main, str) and (revision := git_revision(Path(main).absolute().parent)):
        facts["git"] = revision
    return facts


def time_text(seconds: float) -> str:
    """Return a time, in seconds since the epoch, in the time zone of this machine as ISO 8601 writes it."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")


def is_failure(error: BaseException) -> bool:
    """Return whether `error` is no regular end of an iteration or of the script."""
    is_regular_exit = isinstance(error, SystemExit) and error.code in (None, 0)
    return not isinstance(error, _REGULAR) and not is_regular_exit


def error_facts(error: BaseException) -> dict[str, object]:
    """Return class and message of an exception, and the line of the script that raised it or called what did."""
    try:
        message = " ".join(str(error)[:_MOST_CHARACTERS].split())
    except Exception:  # its text cannot be made
        message = ""
    named = {"type": type(error).__name__, "message": _LOGIN.sub(_HIDDEN, message)}
    return {**named, **script_line(reversed(list(walk_tb(error.__traceback__))))}


def script_line(stack: Iterable[tuple[FrameType, int]]) -> dict[str, object]:
    """Return file and line of the innermost frame of the script in a stack, innermost first; empty without one."""
    frames = [Frame(frame.f_code.co_filename, line, frame.f_code.co_name, "") for frame, line in stack]
    place = script_frame(frames)
    return {} if place is None else {"file": place.file, "line": place.line}


def command_line(arguments: Sequence[str], dump_path: Path) -> list[str]:
    """`arguments` with the values of options that may be secrets replaced by `***`.

    What names the folder of the dump, or one above it, is `DUMP`: it differs in two runs that are compared.
    """
    words: list[str] = []
    hides_next = False
    for argument in arguments[:_MOST_ARGUMENTS]:
        name, mark, value = argument.partition("=")
        is_secret = has_secret_name(name) and (name.startswith("-") or bool(mark))
        if hides_next and not argument.startswith("-"):
            words.append(_HIDDEN)
        elif is_secret and mark:
            words.append(f"{name}={_HIDDEN}")
        elif words and mark and _is_of_the_dump(value, dump_path):
            words.append(f"{name}={_DUMP}")
        elif words and _is_of_the_dump(argument, dump_path):
            words.append(_DUMP)
        else:
            words.append(_LOGIN.sub(_HIDDEN, argument[:_MOST_CHARACTERS]))
        hides_next = is_secret and not mark
    return words


def _is_of_the_dump(argument: str, dump_path: Path) -> bool:
    if not argument or len(argument) > _MOST_CHARACTERS or "\0" in argument or argument in (".", "/"):
        return False
    return Path(argument).absolute() in (dump_path.absolute(), *dump_path.absolute().parents)


def git_revision(folder: Path) -> dict[str, str]:
    """Revision and branch of the repository that `folder` is in; empty without one. No program is run.

    A branch is looked for in its file, then among the packed references; in the folder of a worktree, then in that of
    the repository. Files that were changed since are not noticed.
    """
    try:
        place = next(_git_folders(folder))
        head = _line(place / "HEAD")
        if _REVISION.fullmatch(head):
            return {"revision": head}
        if not head.startswith("ref: refs/"):
            return {}
        name = head.removeprefix("ref: ").strip()
        if ".." in Path(name).parts:
            return {}
        common = place / _line(place / "commondir") if (place / "commondir").is_file() else place
        revision = _loose(place, name) or _loose(common, name) or _packed(common, name)
        branch = {"branch": name.removeprefix("refs/heads/")}
        return {"revision": revision, **branch} if revision else branch
    except (OSError, ValueError, StopIteration):
        return {}


def _git_folders(folder: Path) -> Iterator[Path]:
    """The folders of git for `folder` and those above it, nearest first."""
    for place in (folder, *folder.parents):
        entry = place / ".git"
        if entry.is_dir():
            yield entry
        elif entry.is_file() and (text := _line(entry)).startswith("gitdir: "):
            yield place / text.removeprefix("gitdir: ").strip()


def _line(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace").strip()


def _loose(folder: Path, name: str) -> str:
    path = folder / name
    text = _line(path) if path.is_file() else ""
    return text if _REVISION.fullmatch(text) else ""


def _packed(folder: Path, name: str) -> str:
    path = folder / "packed-refs"
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        lines = file.read(_MOST_PACKED).decode(errors="replace").splitlines()
    lines_of_refs = (line.partition(" ") for line in lines)
    return next((revision for revision, _, ref in lines_of_refs if ref == name and _REVISION.fullmatch(revision)), "")


#: Names of environment variables and what each does to numbers, one a line.
TABLE = Path(__file__).with_name("environment.txt")


@functools.cache  # asked at each step that is collected
def variables() -> tuple[str, ...]:
    """Return the names of the table, in its order."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return tuple(line.partition(":")[0] for line in lines if line and not line.startswith("#"))


def environment() -> dict[str, str]:
    """Return the variables of the table that are set, with at most 256 characters of each value."""
    return {name: os.environ[name][:256] for name in variables() if name in os.environ}


def ranks_of(rank: int, world_size: int, groups: Iterable[tuple[str, Sequence[int]]]) -> dict[str, object]:
    """What `Framework.ranks` gives, of (name, global ranks) of each group, some perhaps several times.

    A group without a name, or with one that stands for other ranks already, is called `group_0_1`; the group of all is
    `world`. Groups without `rank` are left out.
    """
    named = {"world": list(range(world_size))}
    for name, ranks in groups:
        members = list(ranks)
        is_named = bool(name) and named.get(name, members) == members
        if rank in members and (is_named or members not in named.values()):
            named.setdefault(name if is_named else f"group_{'_'.join(map(str, sorted(members)))}", members)
    places = {name: {"ranks": members, "index": members.index(rank)} for name, members in named.items()}
    return {"world_size": world_size, "rank": rank, "groups": places}


def run_watched(debugger: Any, steps: Any, script: str, arguments: Sequence[str], *, is_module: bool) -> None:
    """Run a script as `run` does, while `steps` look for its steps; what ends it is noted by `debugger`.

    `steps` has `install` and `uninstall`, `debugger` is a `PrecisionDebugger`: this module loads neither.
    """
    steps.install()
    try:
        run(script, arguments, is_module=is_module)
    except BaseException as error:
        debugger.script_error = error
        raise
    finally:
        steps.uninstall()
    debugger.note_empty_run()


def run(script: str, arguments: Sequence[str], *, is_module: bool) -> None:
    """Run `script` as `python SCRIPT ARGUMENTS` does, or `python -m SCRIPT ARGUMENTS`.

    The module of a file stays `__main__` to the end of the process, as pickle needs it. What the script raises is
    raised, SystemExit included.
    """
    sys.argv[:] = [script, *arguments]
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    path = os.path.abspath(script)
    main = ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.path[0] = str(Path(path).resolve().parent)
    exec(compile(Path(path).read_bytes(), path, "exec"), vars(main))  # noqa: S102  # the user's own script
