"""Entries of the catalogue of laws, trained with MindSpore in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mindspore")

from msprobe_laws.mindspore.watch import MindSporeWatch
from quality.laws.answers import Answer, read
from quality.laws.entries import catalogue

ENTRIES = {entry.name: entry for entry in catalogue("mindspore")}
BROKEN = (
    "head exchanged after the optimizer was made",
    "head in two optimizers",
    "encoder stays frozen",
    "accumulated gradients are never set to zero",
    "scaled gradients are applied",
    "functional dropout in evaluation",
    "one mask in all layers",
    "labels are moved twice",
    "head and embedding part",
    "evaluation leaves a layer in float16",
    "always the first batch",
    "only the network is saved",
)
RIGHT = ("nn.SGD", "nn.AdamWeightDecay in groups", "loss scale", "accumulation in MindSpore", "TrainOneStepCell")


def answer(name: str, folder: Path) -> Answer:
    """What the laws say of the last start of a script."""
    entry = ENTRIES[name]
    for run in range(entry.runs):
        watch = MindSporeWatch(folder / f"run{run}" / "msprobe_laws", ())
        watch.install()
        try:
            entry.train()
        finally:
            watch.close()
    return read(entry, folder / f"run{entry.runs - 1}")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_law_is_named_with_its_parameter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(name, tmp_path).verdict == "right"
    assert not list(tmp_path.rglob("dump_error_info.log"))


@pytest.mark.parametrize("name", RIGHT)
def test_right_trainings_keep_all_laws(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(name, tmp_path).verdict == "clean"
