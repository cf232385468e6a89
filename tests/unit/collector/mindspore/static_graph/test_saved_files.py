"""Files that a script saves by hand: their names, and the way of TensorDump's files on Ascend (never run there)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from msprobe_collector.mindspore.static_graph import files as saved_files
from msprobe_collector.mindspore.static_graph.files import SavedFiles, tensor_names

TENSOR = ("tensor", "Float32", (2,))


def test_nested_tensors_have_the_names_of_their_places() -> None:
    description = ("items", (TENSOR, ("value", 3), ("keys", ("k", "e"), (TENSOR, ("tensor", "Float32", (0,))))))
    assert list(tensor_names("state", description)) == ["state.0", "state.2.k"]


@pytest.fixture
def at_exit() -> list[Callable[[], None]]:
    """What the process does at its end."""
    return []


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, at_exit: list[Callable[[], None]]) -> SavedFiles:
    """As on Ascend, where TensorDump has already written what it was asked for."""
    monkeypatch.setattr(saved_files, "wait_for_files", lambda folder: (folder / "step_is_over_int32_9.npy").touch())
    monkeypatch.setattr(saved_files, "communication_rank", lambda: 3)
    monkeypatch.setattr(saved_files, "atexit", SimpleNamespace(register=at_exit.append))
    return SavedFiles()


def test_files_of_tensor_dump_move_to_their_step_and_rank(
    files: SavedFiles, at_exit: list[Callable[[], None]], tmp_path: Path
) -> None:
    hidden, gradient = files.waiting_path(str(tmp_path), "h_in"), files.waiting_path(str(tmp_path), "h_in_grad")
    waiting = tmp_path / "waiting" / f"proc{os.getpid()}"
    assert [Path(hidden), Path(gradient)] == [waiting / "h_in", waiting / "h_in_grad"]
    np.save(f"{hidden}_float32_0.npy", np.zeros(2))
    np.save(f"{gradient}_out_float32_1.npy", np.ones(2))
    files.end_step()
    np.save(f"{hidden}_float32_2.npy", np.zeros(2))
    (finish,) = at_exit
    finish()
    assert not (tmp_path / "waiting").exists()
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.npy")) == [
        "step0/rank3/h_in_float32_0.npy",
        "step0/rank3/h_in_grad_float32_1.npy",
        "step1/rank3/h_in_float32_2.npy",
    ]


def test_files_that_never_come_stay_and_training_goes_on(
    files: SavedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def never(folder: Path) -> None:
        raise TimeoutError("TensorDump has not finished")

    monkeypatch.setattr(saved_files, "wait_for_files", never)
    kept = f"{files.waiting_path(str(tmp_path), 'h')}_float32_0.npy"
    np.save(kept, np.zeros(2))
    files.end_step()
    assert Path(kept).exists()
    assert "stay there: TensorDump has not finished" in caplog.text


def test_a_folder_that_is_a_file_ends_no_compilation(
    files: SavedFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").touch()
    assert files.waiting_path(str(tmp_path / "taken"), "h") == ""
    assert "'h' cannot be saved" in caplog.text
