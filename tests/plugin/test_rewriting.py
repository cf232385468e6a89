"""pytest's assertion rewriting compiles modules anew in each process; ours are left out of it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import msprobe_collector
import pytest_msprobe

QUICKSTART = Path(__file__).parents[1] / "dumps" / "quickstart"
#: Imported before the finder is in place.
BEFORE = {"pytest_msprobe", "pytest_msprobe.plugin", "pytest_msprobe.support"}
WITNESS = """
import sys
from pathlib import Path
OURS = ("pytest_msprobe", "msprobe_collector")
def pytest_unconfigure():
    loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in OURS}
    hook = "AssertionRewritingHook"
    rewritten = [name for name, module in loaded.items() if type(module.__loader__).__name__ == hook]
    Path("seen.txt").write_text(f"{len(loaded)} {' '.join(rewritten)}")
"""


def install_as_from_a_wheel(folder: Path) -> None:
    """The packages in `folder` with metadata that lists their files, as pip leaves them."""
    name = f"pytest_msprobe-{pytest_msprobe.__version__}.dist-info"
    (folder / name).mkdir(parents=True)
    installed = metadata.distribution("pytest-msprobe")
    for file in ("METADATA", "entry_points.txt"):
        (folder / name / file).write_text(installed.read_text(file) or "", encoding="utf-8")
    record = [f"{name}/METADATA,,", f"{name}/RECORD,,"]
    for package in (pytest_msprobe, msprobe_collector):
        root = Path(package.__file__).parent
        (folder / root.name).symlink_to(root)
        record += [f"{path.relative_to(root.parent)},," for path in sorted(root.rglob("*.py"))]
    (folder / name / "RECORD").write_text("\n".join(record), encoding="utf-8")


@pytest.mark.parametrize("is_wheel", [True, False], ids=["installed", "as it is here"])
def test_our_modules_are_not_rewritten(tmp_path: Path, is_wheel: bool) -> None:
    site, folder = tmp_path / "site", tmp_path / "project"
    if is_wheel:
        install_as_from_a_wheel(site)
    folder.mkdir()
    (folder / "witness.py").write_text(WITNESS)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{site}{os.pathsep}{folder}"}
    # Collection is enough, and a warning that a module cannot be rewritten any more would be an error.
    command = [sys.executable, "-W", "error", "-m", "pytest", "-p", "witness", "-p", "no:hypothesispytest", "--co"]
    dump = f"--msprobe-dump={next(QUICKSTART.rglob('dump.json'))}"
    done = subprocess.run([*command, dump], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    loaded, *rewritten = (folder / "seen.txt").read_text().split()
    assert int(loaded) > 40
    assert set(rewritten) <= BEFORE
    if is_wheel:
        assert "pytest_msprobe" in rewritten  # else nothing was to be kept out
