"""Files of gradient monitoring: whole or absent, and nobody else's touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from msprobe_collector.gradient_monitor import RankFolder

SIGNS = np.array([[True, False]])


def test_signs_and_summary_stand_where_documented(tmp_path: Path) -> None:
    folder = RankFolder(tmp_path / "new" / "dump" / "rank3")
    folder.write_signs(7, "fc.weight", SIGNS)
    folder.write_summary(7, [["param_name", "(-inf, 0]"], ["fc.weight", "0.5"]])
    root = tmp_path / "new" / "dump" / "rank3"
    assert np.load(root / "step7" / "fc.weight.npy", allow_pickle=False).tolist() == SIGNS.tolist()
    assert (root / "grad_summary_7.csv").read_text() == 'param_name,"(-inf, 0]"\nfc.weight,0.5\n'
    assert sorted(path.name for path in root.rglob("*.partial")) == []
    assert stat.S_IMODE((root / "grad_summary_7.csv").stat().st_mode) & 0o137 == 0
    assert stat.S_IMODE(root.stat().st_mode) & 0o027 == 0


@pytest.mark.parametrize("name", ["../evil", "a/b", "a b", "", "x" * 250])
def test_a_parameter_that_cannot_name_a_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = RankFolder(tmp_path / "rank0")
    if name == "":
        folder.write_signs(0, name, SIGNS)
        assert os.listdir(folder.path / "step0") == [".npy"]
        return
    with pytest.raises(ValueError, match="cannot name a file"):
        folder.write_signs(0, name, SIGNS)
    assert list(tmp_path.rglob("*.npy*")) == []


def test_an_earlier_run_is_removed_and_nothing_else(tmp_path: Path) -> None:
    earlier = RankFolder(tmp_path / "rank0")
    earlier.write_signs(5, "w", SIGNS)
    earlier.write_signs(6, "w", SIGNS)
    earlier.write_summary(5, [["param_name"]])
    (earlier.path / "step7").mkdir()
    (earlier.path / "step7" / "w.npy.partial").touch()
    kept = [earlier.path / "notes.txt", earlier.path / "step6" / "mine.txt", earlier.path / "steps" / "w.npy"]
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "w.npy").touch()
    (earlier.path / "step9").symlink_to(outside)
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    earlier.release()
    RankFolder(tmp_path / "rank0")
    left = sorted(path for path in earlier.path.rglob("*") if path.is_file())
    assert left == sorted(kept)
    assert not (earlier.path / "step5").exists()
    assert not (earlier.path / "step7").exists()
    assert (outside / "w.npy").exists()


def test_a_file_that_fails_half_way_does_not_get_its_name(tmp_path: Path) -> None:
    folder = RankFolder(tmp_path / "rank0")

    def rows() -> object:
        yield ["param_name"]
        raise MemoryError

    with pytest.raises(MemoryError):
        folder.write_summary(1, rows())  # type: ignore[arg-type]
    assert not (folder.path / "grad_summary_1.csv").exists()
