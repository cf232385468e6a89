"""Commands and outputs in Markdown: which there are, and on which page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The pages that people read; those of `quality` are written by its programs.
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "extensions").glob("*/README.md")),
]
_BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:pytest|python -m pytest_msprobe) [^`]*)`")
#: First words of a command where a block does not say that it holds some.
_PROGRAMS = ("pytest", "python", "torchrun", "cd")
#: Blocks in these languages are read by the tests of their pages.
_OTHERS = ("python", "yaml", "json", "toml", "diff", "groovy")


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        words: without comment, and without what accepts its exit code.
        output: lines that it prints, in this order, as patterns of fnmatch.
    """

    words: tuple[str, ...]
    output: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """A fenced block that holds commands or an output, or a command within a line.

    Attributes:
        page: place in the repository.
        text: of it.
        commands: in it; () for an output alone.
    """

    page: str
    text: str
    commands: tuple[Command, ...]

    @property
    def start(self) -> str:
        """Its first line."""
        return self.text.splitlines()[0].strip()


def blocks() -> Iterator[Block]:
    """All blocks that are no example in another language."""
    for path in sorted(PAGES):
        page = path.relative_to(ROOT).as_posix()
        for language, text in _BLOCK.findall(path.read_text(encoding="utf-8")):
            if language not in _OTHERS:
                yield Block(page, text, tuple(_commands(language, text)))


def inline_commands(page: str) -> list[Block]:
    """Commands within the lines of a page that name what they judge; those with dots or alternatives do not."""
    text = _BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    found = dict.fromkeys(span for span in _INLINE.findall(text) if not re.search(r"\.\.\.| NAME$", span))
    return [Block(page, span, (Command(tuple(shlex.split(span))),)) for span in found]


def example(page: str, start: str) -> list[Command]:
    """Return the commands of the console block of a page whose first command starts with `start`."""
    (found,) = (block for block in blocks() if block.page == page and block.start.startswith(f"$ {start}"))
    return list(found.commands)


def code(page: str, first: str) -> str:
    """Return the block of Python of a page whose text starts with `first`."""
    texts = re.findall(
        r"^```python[^\n]*\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (found,) = (text for text in texts if text.startswith(first))
    return str(found)


def _commands(language: str, text: str) -> Iterator[Command]:
    lines = text.replace("\\\n", " ").splitlines()
    if language in ("console", "text"):
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(lines)]):
            yield Command(_words(lines[start][2:]), tuple(lines[start + 1 : end]))
    elif language in ("bash", "sh"):
        yield from (Command(words) for line in lines if (words := _words(line)))
    elif not language:
        yield from (Command(words) for line in lines if (words := _words(line)) and words[0] in _PROGRAMS)


def _words(line: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(line.partition(" || ")[0], comments=True))
    except ValueError:
        return ()
