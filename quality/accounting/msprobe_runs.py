"""Compares pairs of dumps with msProbe; a script for the Python that has it: `python msprobe_runs.py PAIRS.json`.

PAIRS.json is a list of [target dump.json, golden dump.json, folder of the table].
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

if __name__ == "__main__":
    from msprobe.msprobe import main  # type: ignore[import-not-found]  # of the other tool

    for target, golden, folder in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        Path(folder).mkdir(parents=True, exist_ok=True)
        sys.argv = ["msprobe", "compare", "-tp", target, "-gp", golden, "-o", folder]
        try:
            main()
        except (Exception, SystemExit):  # one pair that it cannot compare must not end the others
            Path(folder, "failed.txt").write_text(traceback.format_exc(), encoding="utf-8")
