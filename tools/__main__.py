"""Lists the programs: `python -m tools` and `python -m quality`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path


def programs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the command of each program below `folder`, and what it answers: the first line of its docstring.

    A program is a module whose docstring has its own command in a line of four spaces and `python -m`.
    """
    for file in sorted(folder.rglob("*.py")):
        words = file.relative_to(folder.parent).with_suffix("").parts
        command = f"python -m {'.'.join(word for word in words if word != '__main__')}"
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        if any(f"{line} ".startswith(f"    {command} ") for line in text.splitlines()):
            yield command, text.partition("\n")[0]


def listing(folder: Path) -> str:
    """Return a line for each program."""
    found = list(programs(folder))
    width = max(len(command) for command, _ in found)
    return "".join(f"{command:{width}}  {answer}\n" for command, answer in found)


if __name__ == "__main__":
    sys.stdout.write(listing(Path(__file__).parent))
