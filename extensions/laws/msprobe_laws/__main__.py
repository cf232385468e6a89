"""Run a script with its laws checked: `python -m msprobe_laws train.py ARGUMENTS`."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from msprobe_laws.start import ENVIRONMENT, install


def main() -> None:
    """Run the script that the command line names as `python` would."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m msprobe_laws SCRIPT [ARGUMENTS]")
    if os.environ.get(ENVIRONMENT, "") in ("", "0"):
        os.environ[ENVIRONMENT] = "1"
    del sys.argv[0]
    script = Path(sys.argv[0])
    if not script.is_file():
        sys.exit(f"{script}: there is no such script")
    sys.path[0] = str(script.resolve().parent)
    install()
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
