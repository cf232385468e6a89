"""From a recipe to its folders: each run in a process of its own, as a user would start it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from quality.evals.questions import Eval
from tools import ROOT, clone_environment


def make(eval_: Eval, root: Path) -> None:
    """Write `root/NAME/target` and, where the eval has one, `root/NAME/golden`; what is there already stays.

    Raises:
        RuntimeError: A recipe failed; the message ends with what it printed.
    """
    for side in ("target", "golden") if eval_.has_golden else ("target",):
        folder = root / eval_.name / side
        if folder.exists():
            continue
        done = subprocess.run(
            [sys.executable, "-m", "quality.evals.making", eval_.module, eval_.name, side, str(folder)],
            env=clone_environment(OMP_NUM_THREADS="1"),
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode or not folder.exists():
            raise RuntimeError(f"{eval_.name}, {side}: the recipe failed\n{done.stdout}\n{done.stderr}")


def run_recipe(module: str, name: str, side: str, folder: str) -> None:
    """In the child process: call the recipe."""
    import importlib

    recipe = getattr(importlib.import_module(f"quality.evals.{module}"), name)
    recipe(Path(folder).resolve(), side == "target")


if __name__ == "__main__":
    run_recipe(*sys.argv[1:])
