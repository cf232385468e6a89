"""Tensor files, read back by NumPy."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from msprobe_collector.dump_format.writing.files import TensorFiles


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array(2.5),
        np.zeros((0, 4), np.float16),
        np.array([True, False]),
        np.array([1 + 2j]),
    ],
)
def test_tensor_files_load_as_they_were(tmp_path, array):
    TensorFiles(tmp_path / "tensors").save("x.npy", array)
    loaded = np.load(tmp_path / "tensors" / "x.npy", allow_pickle=False)
    np.testing.assert_array_equal(loaded, array)
    assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)


@pytest.mark.parametrize("name", [f"{'x' * 300}.npy", "../out.npy"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(OSError, match="name"):
        TensorFiles(tmp_path / "tensors").save(name, np.zeros(1))
    assert list(tmp_path.rglob("*.npy")) == []


def test_a_file_that_the_disk_cuts_short_is_not_there(tmp_path, monkeypatch):
    whole = os.write

    def one_piece(descriptor, content):
        if len(content) > 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(descriptor, content[:50])

    files = TensorFiles(tmp_path)
    files.save("small.npy", np.zeros(3, np.int8))
    monkeypatch.setattr(os, "write", one_piece)
    with pytest.raises(OSError, match="No space"):
        files.save("x.npy", np.zeros(1000))
    assert [path.name for path in tmp_path.iterdir()] == ["small.npy"]
