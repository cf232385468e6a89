"""Lists the programs of this folder: `python -m quality`."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.__main__ import listing

if __name__ == "__main__":
    sys.stdout.write(listing(Path(__file__).parent))
