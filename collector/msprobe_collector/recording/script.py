"""Which script runs, and what it ended in.

- Its command line without secrets, and the git revision of its repository, read from files.
- The exception that ended a step: class, message, and the line of the script.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from types import FrameType

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
