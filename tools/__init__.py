"""Programs for who works on this project: `python -m tools` lists them. Nothing of it ships.

They use helpers of the tests, which this makes importable.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
#: Folders of the packages of this clone.
SOURCES = (ROOT, ROOT / "collector", *(ROOT / "extensions" / name for name in ("laws", "checkpoints")))

if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))


def clone_environment(**variables: str) -> dict[str, str]:
    """Return the variables of a process that finds the packages of this clone first, with `variables`."""
    paths = [*map(str, SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
