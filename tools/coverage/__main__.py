"""Which APIs of the installed MindSpore are judged, and by what; for the rest, why nothing judges them.

    python -m tools.coverage [-o FILE]

Needs MindSpore and PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools import coverage


def main(given: Sequence[str] | None = None) -> None:
    """Print or write the page. SystemExit when a framework is not installed, or the file cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m tools.coverage", description=__doc__.partition("\n")[0])
    parser.add_argument("-o", dest="file", metavar="FILE", type=Path, help="write into FILE; default: print")
    file: Path | None = parser.parse_args(given).file
    try:
        text = coverage.make_page()
    except ImportError as error:
        sys.exit(f"{error.name} is needed for this: {error}")
    if file is None:
        sys.stdout.write(text)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        sys.exit(f"{file} cannot be written: {error.strerror}")
    sys.stdout.write(f"wrote {file}\n")


if __name__ == "__main__":
    main()
