"""Writes the tables of operators that a record may call, for the installed MindSpore and PyTorch.

    python -m tools.operators [-o DIR] [--framework mindspore|torch]

They are what a run may call: read the difference before you commit it, see docs/security.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.operators import tables


def main() -> None:
    """Print or write the tables. SystemExit when a framework is not installed, or a file cannot be written."""
    makers = {"mindspore": tables.mindspore_table, "torch": tables.torch_table}
    parser = argparse.ArgumentParser(prog="python -m tools.operators", description=__doc__.partition("\n")[0])
    parser.add_argument("-o", dest="folder", metavar="DIR", type=Path, help="folder to write into; default: print")
    parser.add_argument("--framework", choices=makers, help="only the table of this framework; default: both")
    arguments = parser.parse_args()
    folder: Path | None = arguments.folder
    for framework in [arguments.framework] if arguments.framework else makers:
        try:
            table = makers[framework]()
        except ImportError as error:
            sys.exit(f"{error.name} is needed for this: {error}")
        if folder is None:
            sys.stdout.write(table.text)
            continue
        try:
            (folder / table.file).write_text(table.text, encoding="utf-8")
        except OSError as error:
            sys.exit(f"{folder / table.file} cannot be written: {error.strerror}")
        sys.stdout.write(f"wrote {folder / table.file}\n")


if __name__ == "__main__":
    main()
