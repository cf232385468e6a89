"""Which dump an answer is about: the command that made it, and when."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.manifest import MANIFEST_FILE, read_manifest
from pytest_msprobe.answers.answer import About


def about_of(path: Path, *, side: Literal["target", "golden", "exact"] = "target") -> About:
    """The dump at `path` with the script and time of its first run.json; both are "" where there is none."""
    manifest = _first_manifest(path)
    if manifest is None:
        return About(path=str(path), side=side)
    try:
        facts = read_manifest(manifest)
    except DumpError:
        return About(path=str(path), side=side)
    command = facts.script.get("command")
    script = shlex.join(map(str, command)) if isinstance(command, list) else ""
    return About(path=str(path), side=side, script=script, time=facts.time[:16].replace("T", " "))


def _first_manifest(path: Path) -> Path | None:
    folder = path if path.is_dir() else path.parent
    # A run has steps, and a step has ranks; below these there are only tensors, perhaps a million files.
    patterns = (MANIFEST_FILE, f"*/{MANIFEST_FILE}", f"*/*/{MANIFEST_FILE}") if path.is_dir() else (MANIFEST_FILE,)
    try:
        for pattern in patterns:
            if first := min(folder.glob(pattern), default=None):
                return first
    except OSError:
        return None
    return None
