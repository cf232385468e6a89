"""How the accounting answers pairs of dumps that the existing tool wrote, and pairs of MindSpore and PyTorch.

    python -m quality.accounting.other_tool --write FOLDER [--framework ...] [NAMES]
    python -m quality.accounting.other_tool --pairs FOLDER [--half a|b] [--items] [NAMES]

The pairs are held out: half `a` may be looked at while the accounting is mended, half `b` is run at the end. To write
the existing tool's dumps, MSPROBE_REFERENCE_PYTHON names a Python with mindstudio-probe, PyTorch and MindSpore.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from quality.accounting.other_tool.table import main

    sys.exit(main())
