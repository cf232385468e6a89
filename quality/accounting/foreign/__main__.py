"""How often the accounting is right on networks that others wrote.

    python -m quality.accounting.foreign [NAME...] [--half a|b|c|d] [--pairs FOLDER] [--write-only]

Each NAME is a part of names of pairs. Half `a` may be looked at while the accounting is mended, half `b` only at the
end; `c` and `d` were written later, by those who had not read the accounting. It needs an environment with
transformers, timm, torchvision, diffusers and mindcv beside PyTorch and MindSpore.
Dumps that lie in FOLDER are taken from there: delete it after a change of the collectors.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """Write the dumps, diagnose them, print the answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of pairs; none: all")
    parser.add_argument("--half", choices=("a", "b", "c", "d"), help="one part of the catalogue")
    parser.add_argument("--pairs", type=Path, help="where dumps are kept and taken from")
    parser.add_argument("--write-only", action="store_true", help="write the dumps and say no more")
    arguments = parser.parse_args()

    import torch

    from quality.accounting.foreign import answers, catalogue
    from quality.accounting.foreign.writing import Pairs

    torch.set_num_threads(1)
    chosen = catalogue.chosen(arguments.names, arguments.half)
    with tempfile.TemporaryDirectory() as temporary:
        pairs = Pairs((arguments.pairs or Path(temporary)).resolve())
        failed = pairs.write(chosen)
        rows = []
        names = [pair.name for pair in chosen if not any(line.startswith(f"{pair.name}: ") for line in failed)]
        for name in [] if arguments.write_only else names:
            rows.append(answers.answered(pairs, name))
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
    lines = [*(answers.summary(rows) if rows else ()), f"{len(failed)} of {len(chosen)} pairs could not be written"]
    sys.stdout.write("\n".join([*lines, *failed, ""]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
