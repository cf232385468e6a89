from __future__ import annotations

import contextlib
import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from msprobe_collector.dump_format import Dtype, dtype_of_array, find_dtype
from msprobe_collector.dump_format.pytorch_files import MAP_FROM_BYTES, PytorchFileError, read_pytorch_tensor


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


def rewritten(file: io.BytesIO, end: str, content: bytes, compression: int = zipfile.ZIP_STORED) -> io.BytesIO:
    """The same archive with the member that ends in `end` holding `content`."""
    out = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            if name.endswith(end):
                new.writestr(name, content, compression)
            else:
                new.writestr(name, old.read(name))
    out.seek(0)
    return out


def many_members() -> io.BytesIO:
    out = saved(BASE)
    with zipfile.ZipFile(out, "a") as archive:
        for number in range(65 - len(archive.namelist())):
            archive.writestr(f"more/{number}", b"")
    return out


def flipped(file: io.BytesIO) -> io.BytesIO:
    content = bytearray(file.getvalue())
    at = content.index(BASE.numpy().tobytes())
    content[at] ^= 1
    return io.BytesIO(content)


FLOAT32 = dtype_of(BASE)


def test_nothing_that_a_file_names_is_called(tmp_path: Path) -> None:
    with pytest.raises(PytorchFileError, match=r"it names posix.mkdir, which a tensor does not need; refused"):
        read_pytorch_tensor(saved(Grenade(tmp_path / "boom")), (4, 6), FLOAT32)
    assert list(tmp_path.iterdir()) == []


BAD = {
    "not a zip": (lambda: io.BytesIO(b"junk" * 50), "is not a .pt file"),
    "empty": (lambda: io.BytesIO(), "is not a .pt file"),
    "a dict": (lambda: saved({"a": 1}), "its description uses EMPTY_DICT, which that of one tensor does not"),
    "two tensors": (lambda: saved([BASE, BASE]), "its description uses EMPTY_LIST"),
    "other shape": (lambda: saved(BASE.t().contiguous()), r"has shape \(6, 4\), the record says \(4, 6\)"),
    "other dtype": (lambda: saved(BASE.double()), "holds Float64, the record says Float32"),
    "cut storage": (lambda: rewritten(saved(BASE), "data/0", b"\0" * 8), "is truncated"),
    "cut description": (lambda: rewritten(saved(BASE), "data.pkl", b"\x80\x02"), "its description is damaged"),
    "a conjugate view": (lambda: saved(torch.complex(BASE, BASE).conj()), "EMPTY_DICT"),
    "a number": (lambda: rewritten(saved(BASE), "data.pkl", b"\x80\x02K\x01."), "holds a int, not a tensor"),
    "big-endian": (lambda: rewritten(saved(BASE), "byteorder", b"big"), "not written on a little-endian machine"),
    "a memo that fills memory": (
        lambda: rewritten(saved(BASE), "data.pkl", b"\x80\x02K\x01r\xff\xff\xff\x7f."),
        "holds a int, not a tensor",
    ),
    "a number of many digits": (
        lambda: rewritten(saved(BASE), "data.pkl", b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b"."),
        "a number that no tensor has",
    ),
    "endless operations": (
        lambda: rewritten(saved(BASE), "data.pkl", b"\x80\x02" + b"N" * 60_000 + b"."),
        "more than 1000 operations",
    ),
    "an attribute that is set": (
        lambda: rewritten(saved(BASE), "data.pkl", b"\x80\x02ctorch._utils\n_rebuild_parameter\n}b."),
        "uses EMPTY_DICT",
    ),
    "many members": (lambda: many_members(), "it has 65 members"),
    "a compressed member": (lambda: rewritten(saved(BASE), "data/0", bytes(96), zipfile.ZIP_DEFLATED), "is compressed"),
    "a bomb": (lambda: rewritten(saved(BASE), "data.pkl", bytes(1 << 20), zipfile.ZIP_DEFLATED), "is compressed"),
    "a flipped bit": (lambda: flipped(saved(BASE.clone())), "the checksum of its values is wrong"),
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


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_that_torch_can_write_is_read(protocol: int) -> None:
    file = io.BytesIO()
    torch.save(BASE[1:], file, pickle_protocol=protocol)
    np.testing.assert_array_equal(read_pytorch_tensor(file, (3, 6), FLOAT32), BASE[1:].numpy())


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_large_tensor_is_mapped_or_copied_once(tmp_path: Path, is_transposed: bool) -> None:
    tensor = torch.arange(MAP_FROM_BYTES, dtype=torch.float32).reshape(2, -1)
    tensor = tensor.t() if is_transposed else tensor
    torch.save(tensor, tmp_path / "x.pt")
    with (tmp_path / "x.pt").open("rb") as file:
        array = read_pytorch_tensor(file, tuple(tensor.shape), FLOAT32)
    assert array.flags.c_contiguous
    assert array.flags.writeable is is_transposed  # a mapped file is read-only
    np.testing.assert_array_equal(array, tensor.numpy())


def test_a_view_far_larger_than_its_file_is_refused() -> None:
    view = torch.ones(1).expand(1 << 20, 1 << 20)
    with pytest.raises(PytorchFileError, match="describes 1099511627776 elements over a storage of 1"):
        read_pytorch_tensor(saved(view), (1 << 20, 1 << 20), FLOAT32)


def test_the_stride_of_one_element_may_be_any_number() -> None:
    tensor = torch.ones(1).as_strided((1, 1), (1 << 60, 1))
    assert read_pytorch_tensor(saved(tensor), (1, 1), FLOAT32).tolist() == [[1.0]]


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_such_tensor_is_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    make, sentence = BAD[case]
    (tmp_path / "x.pt").write_bytes(make().getvalue())
    with (tmp_path / "x.pt").open("rb") as file, pytest.raises(PytorchFileError, match=sentence):
        read_pytorch_tensor(file, (4, 6), FLOAT32)


def _with_large_fields(content: bytes) -> bytes:
    """The archive of `torch.save` whose members have their sizes and offsets in the extra fields of 64 bits."""
    start = content.index(b"PK\1\2")
    out = bytearray(content[:start])
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            name, unknown = entry.filename.encode(), struct.pack("<HH3s", 7, 3, b"any")
            large = struct.pack("<HHQQQ", 1, 24, entry.file_size, entry.file_size, entry.header_offset)
            fields = (
                45,
                45,
                0,
                0,
                0,
                0,
                entry.CRC,
                2**32 - 1,
                2**32 - 1,
                len(name),
                len(unknown + large),
                2,
                0,
                0,
                0,
                2**32 - 1,
            )
            out += struct.pack("<4s6H3L5H2L", b"PK\1\2", *fields) + name + unknown + large + b"no"
        count = len(archive.infolist())
    size = len(out) - start
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, len(out), 1)
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1, 5) + b"words"
    return bytes(out) + end


def test_an_archive_of_more_than_4_gigabytes_has_its_sizes_elsewhere() -> None:
    content = _with_large_fields(saved(BASE).getvalue())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
    np.testing.assert_array_equal(read_pytorch_tensor(io.BytesIO(content), (4, 6), FLOAT32), BASE.numpy())


def test_no_damaged_file_is_read_or_raises_anything_else() -> None:
    """Every byte of the directory changed, and the file cut at every length."""
    for content in (saved(BASE).getvalue(), _with_large_fields(saved(BASE).getvalue())):
        start = content.index(b"PK\1\2")
        damaged = [content[:length] for length in range(start, len(content), 3)]
        for at in range(start, len(content)):
            damaged += [content[:at] + bytes([byte]) + content[at + 1 :] for byte in (0, 255, content[at] ^ 1)]
        for other in damaged:
            with contextlib.suppress(PytorchFileError):
                found = read_pytorch_tensor(io.BytesIO(other), (4, 6), FLOAT32)
                np.testing.assert_array_equal(found, BASE.numpy())
