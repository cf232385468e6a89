from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from msprobe_collector.dump_format import Dtype, dtype_of_array, find_dtype
from msprobe_collector.dump_format.pytorch_files import PytorchFileError, read_pytorch_tensor


def saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def dtype_of(tensor: torch.Tensor) -> Dtype:
    dtype = find_dtype(str(tensor.dtype))
    assert dtype is not None
    return dtype


BASE = torch.arange(24, dtype=torch.float32).reshape(4, 6)
TENSORS = {
    "float32": BASE,
    "0-d": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "transposed": BASE.t(),
    "a slice with an offset": BASE[1:, 2:5],
    "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
    "parameter": torch.nn.Parameter(BASE.clone()),
    "bool": BASE > 3,
    "int64": torch.tensor([2**60, -1]),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "float16": BASE.half(),
    "float64": BASE.double(),
    "bfloat16": BASE.bfloat16(),
    "complex64": torch.complex(BASE, -BASE),
}


@pytest.mark.parametrize("name", TENSORS)
def test_what_torch_saved_comes_back(name: str) -> None:
    tensor = TENSORS[name].detach()
    array = read_pytorch_tensor(saved(TENSORS[name]), tuple(tensor.shape), dtype_of(tensor))
    assert dtype_of_array(array.dtype) is dtype_of(tensor)
    assert array.shape == tuple(tensor.shape)
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    np.testing.assert_array_equal(array.astype(wide.numpy().dtype), wide.numpy())


class Grenade:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def rewritten(file: io.BytesIO, end: str, content: bytes) -> io.BytesIO:
    """The same archive with the member that ends in `end` holding `content`."""
    out = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, content if name.endswith(end) else old.read(name))
    out.seek(0)
    return out


FLOAT32 = dtype_of(BASE)


def test_nothing_that_a_file_names_is_called(tmp_path: Path) -> None:
    with pytest.raises(PytorchFileError, match=r"it names posix.mkdir, which a tensor does not need; refused"):
        read_pytorch_tensor(saved(Grenade(tmp_path / "boom")), (4, 6), FLOAT32)
    assert list(tmp_path.iterdir()) == []


BAD = {
    "not a zip": (lambda: io.BytesIO(b"junk" * 50), "is not a .pt file"),
    "empty": (lambda: io.BytesIO(), "is not a .pt file"),
    "a dict": (lambda: saved({"a": 1}), "holds a dict, not a tensor"),
    "two tensors": (lambda: saved([BASE, BASE]), "holds a list, not a tensor"),
    "other shape": (lambda: saved(BASE.t().contiguous()), r"has shape \(6, 4\), the record says \(4, 6\)"),
    "other dtype": (lambda: saved(BASE.double()), "holds Float64, the record says Float32"),
    "cut storage": (lambda: rewritten(saved(BASE), "data/0", b"\0" * 8), "is cut off"),
    "cut description": (lambda: rewritten(saved(BASE), "data.pkl", b"\x80\x02"), "is not a .pt file"),
    "huge description": (
        lambda: rewritten(saved(BASE), "data.pkl", b"\0" * 100_000),
        "is not a .pt file of one tensor",
    ),
    "elements outside": (
        lambda: rewritten(saved(BASE.clone()), "data.pkl", _description(offset=20)),
        "describes elements outside its storage",
    ),
}


def _description(offset: int) -> bytes:
    with zipfile.ZipFile(saved(BASE.clone())) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        plain = archive.read(name)
    # Protocol 2 writes the offset 0 as BININT1 before the shape (4, 6).
    found = plain.replace(b"K\x00K\x04K\x06", b"K" + bytes([offset]) + b"K\x04K\x06")
    assert found != plain
    return found


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_such_tensor_is_refused_in_a_sentence(case: str) -> None:
    make, sentence = BAD[case]
    with pytest.raises(PytorchFileError, match=sentence):
        read_pytorch_tensor(make(), (4, 6), FLOAT32)
