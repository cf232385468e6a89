"""Programs of the developers: `python -m tools.NAME` in a clone; CONTRIBUTING.md lists them. Nothing of it ships.

They use helpers of the tests, which this makes importable.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"

if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))
