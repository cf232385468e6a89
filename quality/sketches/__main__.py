"""Whether sketches lead to planted causes, and the tensors of the suspects prove them.

    python -m quality.sketches [NAME...] [--foreign N]

Each NAME is a part of names of causes of quality/accounting; none: all of them. With --foreign it is every Nth pair of
PyTorch of quality/accounting/foreign of which a fault should be found, in the environment that these need.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any


def main() -> int:
    """Play all causes, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of causes; none: all")
    parser.add_argument("--foreign", type=int, metavar="N", help="every Nth pair of networks of others instead")
    arguments = parser.parse_args()

    import torch

    from quality.accounting.table import name_of
    from quality.sketches.localising import HEAD, localised, summary

    torch.set_num_threads(1)
    answers = []
    sys.stdout.write("\n".join([*HEAD, ""]))
    for name, write, is_right in _foreign(arguments.foreign) if arguments.foreign else _catalogue():
        if arguments.names and not any(part in name for part in arguments.names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            answers.append(localised(name, write, is_right, lambda found: [*map(name_of, found.faults)], Path(folder)))
        sys.stdout.write(f"{answers[-1]}\n")
        sys.stdout.flush()
    sys.stdout.write("\n".join([*summary(answers), ""]))
    return 0


def _catalogue() -> Iterator[tuple[str, Any, Any]]:
    from quality.accounting.table import CAUSES, is_right
    from quality.sketches.planted import ALSO_RIGHT, write

    for cause in CAUSES:
        expected = (*cause.expected, *ALSO_RIGHT.get(cause.name, ()))
        yield cause.name, partial(write, cause), partial(is_right, replace(cause, expected=expected))


def _foreign(each: int) -> Iterator[tuple[str, Any, Any]]:
    from quality.accounting.foreign import catalogue
    from quality.sketches.planted import ForeignPair

    pairs = [pair for pair in catalogue.chosen([], None) if pair.framework == "pytorch" and pair.answer == "fault"]
    for pair in pairs[::each]:
        found = ForeignPair(pair)
        yield pair.name, found.write, found.is_right


if __name__ == "__main__":
    sys.exit(main())
