"""Whether sketches lead to planted causes, and the tensors of the suspects prove them.

    python -m tools.sketches [NAME...]

Each NAME is a part of names of causes of tools/accounting; none: all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path


def main() -> int:
    """Play all causes, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.sketches")
    parser.add_argument("names", nargs="*", help="parts of names of causes; none: all")
    arguments = parser.parse_args()

    import torch

    from tools.accounting.page import CAUSES, is_right, name_of
    from tools.sketches.localising import HEAD, localised, summary
    from tools.sketches.planted import ALSO_RIGHT, write

    torch.set_num_threads(1)
    chosen = [cause for cause in CAUSES if not arguments.names or any(name in cause.name for name in arguments.names)]
    answers = []
    sys.stdout.write("\n".join([*HEAD, ""]))
    for cause in chosen:
        with tempfile.TemporaryDirectory() as folder:
            answers.append(
                localised(
                    cause.name,
                    partial(write, cause),
                    partial(is_right, replace(cause, expected=(*cause.expected, *ALSO_RIGHT.get(cause.name, ())))),
                    lambda found: (
                        [f"`{name_of(fault)}` ({fault.kind})" for fault in found.faults[:4]] or [found.outcome]
                    ),
                    Path(folder),
                )
            )
        sys.stdout.write(f"{answers[-1]}\n")
        sys.stdout.flush()
    sys.stdout.write("\n".join([*summary(answers), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
