"""Several pytest runs in one process, one after the other: `python contract_driver.py runs.json results.json`.

`runs.json` holds a list of {"arguments", "witness"}, and "folder" for a run elsewhere; `results.json` gets a list of
{"exit_code", "text"}.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest


def main(runs: Path, results: Path) -> None:
    found = []
    start = Path.cwd()
    for run in json.loads(runs.read_text(encoding="utf-8")):
        os.environ["CONTRACT_WITNESS"] = run["witness"]
        os.chdir(run.get("folder", start))
        text = io.StringIO()
        with redirect_stdout(text), redirect_stderr(text):
            exit_code = int(pytest.main(run["arguments"]))
        found.append({"exit_code": exit_code, "text": text.getvalue()})
    os.chdir(start)
    results.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
