"""Tensor files: exact values from good ones, one line and no harm from bad ones."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from msprobe_collector.dump_format import DumpError, FieldPath, TensorFolder, TensorValue, find_dtype
from msprobe_collector.dump_format.tensors import MAP_FROM_BYTES

PLACE = FieldPath("dump.json", "Mint.add.0.forward", "input_args[1]")
SENTENCE = "dump.json: Mint.add.0.forward: input_args[1].data_name: "
FLOATS = np.array([[1.5, -0.0, np.inf], [np.nan, 3e38, -2.0]], dtype=np.float32)


def value(dtype: str | None, shape: tuple[int, ...], name: str | None = "x.npy") -> TensorValue:
    found = None if dtype is None else find_dtype(dtype)
    return TensorValue(found, shape, None, None, None, None, name)


def load(folder: Path, dtype: str | None, shape: tuple[int, ...], name: str | None = "x.npy") -> np.ndarray:
    return TensorFolder(folder).load(value(dtype, shape, name), PLACE)


def refusal(folder: Path, name: str = "x.npy", dtype: str = "Float32", shape: tuple[int, ...] = (3,)) -> str:
    with pytest.raises(DumpError) as caught:
        load(folder, dtype, shape, name)
    text = str(caught.value)
    assert text.startswith(SENTENCE)
    return text.removeprefix(SENTENCE)


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    encoded = header.encode()
    length = len(encoded).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + length + encoded + content


@pytest.mark.parametrize(
    "array",
    [
        FLOATS,
        np.array(2.5, dtype=np.float64),
        np.zeros((0, 3), dtype=np.float16),
        np.zeros((2, 0), dtype=np.int32),
        np.array([True, False]),
        np.array([2**63 - 1, -(2**63)], dtype=np.int64),
        np.array([2**64 - 1], dtype=np.uint64),
        np.array([1 + 2j, np.nan], dtype=np.complex64),
        np.arange(24, dtype=np.int16).reshape(2, 3, 4),
        np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
        np.arange(6, dtype=">f4").reshape(3, 2),
        np.arange(6, dtype=">i8"),
    ],
    ids=lambda array: f"{array.dtype.str}{list(array.shape)}",
)
def test_a_file_gives_its_values_dtype_and_shape(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)
    found = load(tmp_path, array.dtype.name, array.shape)
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.dtype.isnative
    assert found.shape == array.shape
    assert np.array_equal(found, array, equal_nan=array.dtype.kind in "fc")
    assert found.flags.writeable  # frameworks share the memory of small ones


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("BFloat16", np.array([1.5, -0.0, np.inf, np.nan, 3.3895314e38], dtype=np.float32)),
        ("Float8E4M3FN", np.array([448.0, -0.015625, np.nan], dtype=np.float32)),
        ("Float8E5M2", np.array([57344.0, -np.inf, 0.25], dtype=np.float32)),
        ("Int4", np.array([-8, 7, 0], dtype=np.int8)),
    ],
)
def test_small_dtypes_come_back_from_the_type_they_are_stored_in(
    tmp_path: Path, dtype: str, stored: np.ndarray
) -> None:
    np.save(tmp_path / "x.npy", stored)
    found = load(tmp_path, dtype, stored.shape)
    wanted = {"BFloat16": "bfloat16", "Float8E4M3FN": "float8_e4m3fn", "Float8E5M2": "float8_e5m2", "Int4": "int4"}
    assert found.dtype == np.dtype(getattr(ml_dtypes, wanted[dtype]))
    assert np.array_equal(found.astype(stored.dtype), stored, equal_nan=stored.dtype.kind == "f")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("elements", "is_mapped"), [(MAP_FROM_BYTES // 8 - 2, False), (MAP_FROM_BYTES // 8, True), (MAP_FROM_BYTES, True)]
)
def test_large_files_are_mapped_and_read_only(tmp_path: Path, elements: int, is_mapped: bool, order: Any) -> None:
    array = np.array(np.arange(elements, dtype=np.int64).reshape(2, -1), order=order)
    np.save(tmp_path / "x.npy", array)
    found = load(tmp_path, "Int64", array.shape)
    assert isinstance(found, np.memmap) is is_mapped
    assert found.flags.writeable is not is_mapped
    assert np.array_equal(found, array)


def test_a_mapped_file_of_a_small_float_is_converted(tmp_path: Path) -> None:
    stored = np.arange(MAP_FROM_BYTES, dtype=np.float32) % 128
    np.save(tmp_path / "x.npy", stored)
    found = load(tmp_path, "BFloat16", stored.shape)
    assert found.dtype == np.dtype(ml_dtypes.bfloat16)
    assert np.array_equal(found.astype(np.float32), stored)


def test_a_signalling_nan_is_a_nan_and_no_warning(tmp_path: Path) -> None:
    stored = np.array([0x7F810000, 0x3F800000], dtype=np.uint32).view(np.float32)
    np.save(tmp_path / "x.npy", stored)
    found = load(tmp_path, "BFloat16", (2,)).astype(np.float32)
    assert np.isnan(found[0])
    assert found[1] == 1.0


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, FLOATS, version=version)
    assert np.array_equal(load(tmp_path, "Float32", (2, 3)), FLOATS, equal_nan=True)


def test_bytes_after_the_values_do_no_harm(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", FLOATS)
    with (tmp_path / "x.npy").open("ab") as file:
        file.write(b"more")
    assert np.array_equal(load(tmp_path, "Float32", (2, 3)), FLOATS, equal_nan=True)


@pytest.mark.parametrize(
    ("array", "dtype", "shape", "problem"),
    [
        (FLOATS, "Float64", (2, 3), "'x.npy' holds float32, the record says Float64"),
        (FLOATS, "Int32", (2, 3), "'x.npy' holds float32, the record says Int32"),
        (np.zeros((2, 3), np.float16), "BFloat16", (2, 3), "'x.npy' holds float16, the record says BFloat16"),
        (FLOATS.astype(ml_dtypes.bfloat16), "BFloat16", (2, 3), "'x.npy' holds void16, the record says BFloat16"),
        (np.zeros(3, dtype="f4,f4"), "Float32", (3,), "'x.npy' holds void64, the record says Float32"),
        (np.zeros(3, dtype="U4"), "Float32", (3,), "'x.npy' holds str128, the record says Float32"),
        (FLOATS, "Float32", (3, 2), "'x.npy' has shape (2, 3), the record says (3, 2)"),
        (FLOATS, "Float32", (6,), "'x.npy' has shape (2, 3), the record says (6,)"),
        (np.zeros(1, np.float32), "Float32", (), "'x.npy' has shape (1,), the record says ()"),
    ],
)
def test_a_file_that_contradicts_the_record_is_refused(
    tmp_path: Path, array: np.ndarray, dtype: str, shape: tuple[int, ...], problem: str
) -> None:
    np.save(tmp_path / "x.npy", array)
    assert refusal(tmp_path, dtype=dtype, shape=shape) == problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not a NumPy .npy file: EOF"),
        (b"\x93NUMPY", "is not a NumPy .npy file: EOF"),
        (b"\x93NUMPY\x01\x00\xff\x00{", "is not a NumPy .npy file: EOF"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "is not a NumPy .npy file: its header of 65535 bytes is longer than 2048"),
        (b"not an array at all", "is not a NumPy .npy file: the magic string is not correct"),
        (b"PK\x03\x04" + b"\0" * 100, "is not a NumPy .npy file: the magic string is not correct"),
        (npy("{'descr': '<f4', 'shape': (3,"), "is not a NumPy .npy file: "),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 5: 1}"), "is not a NumPy .npy file: "),
        (npy("{[]: 1}"), "is not a NumPy .npy file: unhashable type"),
        (npy("-" * 9000 + "1"), "is not a NumPy .npy file: "),
        (npy("[" * 9000), "is not a NumPy .npy file: "),
        (npy("[]"), "is not a NumPy .npy file: Header is not a dictionary"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': 3}"), "is not a NumPy .npy file: shape is not valid"),
        (npy("{'descr': 'nonsense', 'fortran_order': False, 'shape': (3,)}"), "is not a NumPy .npy file: "),
        (
            npy("x" * 20_000, version=b"\x02\x00"),
            "is not a NumPy .npy file: its header of 20000 bytes is longer than 2048",
        ),
        (
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", b"\0" * 11),
            "is truncated: it holds 11 of 12 bytes of values",
        ),
        (
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}"),
            "is truncated: it holds 0 of 12 bytes of values",
        ),
    ],
)
def test_a_file_that_is_no_whole_npy_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    assert refusal(tmp_path).startswith(f"'x.npy' {problem}")


def test_an_absurd_shape_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    shape = (2**47, 2**47)
    (tmp_path / "x.npy").write_bytes(npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"))
    assert refusal(tmp_path, shape=shape) == f"'x.npy' is truncated: it holds 0 of {4 * 2**94} bytes of values"


def test_an_npz_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", FLOATS)
    assert "is not a NumPy .npy file" in refusal(tmp_path, "x.npz")


class Payload:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_objects_are_refused_and_nothing_in_them_runs(tmp_path: Path) -> None:
    created = tmp_path / "created"
    np.save(tmp_path / "x.npy", np.array([Payload(created)], dtype=object), allow_pickle=True)
    (tmp_path / "y.npy").write_bytes(pickle.dumps(Payload(created)))
    np.savez(tmp_path / "z.npz", np.array([Payload(created)], dtype=object))
    assert refusal(tmp_path, "x.npy", shape=(1,)) == "'x.npy' holds pickled objects, which are never loaded"
    assert "is not a NumPy .npy file" in refusal(tmp_path, "y.npy", shape=(1,))
    assert "is not a NumPy .npy file" in refusal(tmp_path, "z.npz", shape=(1,))
    assert not created.exists()
    np.load(tmp_path / "x.npy", allow_pickle=True)
    assert created.exists()  # the payload does work where it is let


@pytest.mark.parametrize(
    "name",
    [
        "../x.npy",
        "..",
        ".",
        "",
        "sub/x.npy",
        "./x.npy",
        "x.npy/",
        "/etc/passwd",
        "..\\x.npy",
        "sub\\x.npy",
        "C:\\x.npy",
        "x.npy\0",
        "\0",
    ],
)
def test_a_name_that_is_no_plain_file_name_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "dump_tensor_data"
    (folder / "sub").mkdir(parents=True)
    for place in (tmp_path, folder, folder / "sub"):
        np.save(place / "x.npy", np.zeros(3, np.float32))  # so that only the rule refuses it
    assert refusal(folder, name) == f"{name!r} is not a plain file name inside the tensor folder; refused"


def test_a_missing_file_says_where_it_was_sought(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"'x.npy' is not in {tmp_path}; copy dump_tensor_data beside dump.json"
    gone = tmp_path / "gone"
    assert refusal(gone) == f"'x.npy' is not in {gone}; copy dump_tensor_data beside dump.json"


def test_a_name_too_long_for_the_system_is_refused(tmp_path: Path) -> None:
    name = "x" * 300 + ".npy"
    assert refusal(tmp_path, name) == f"{name!r} in {tmp_path} cannot be opened: File name too long"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty tensor folder with a good file outside it, at `../outside.npy`."""
    np.save(tmp_path / "outside.npy", np.zeros(3, np.float32))
    folder = tmp_path / "dump_tensor_data"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_link_out_of_the_folder_is_refused(folder: Path, is_absolute: bool) -> None:
    target = folder.parent / "outside.npy" if is_absolute else Path("../outside.npy")
    (folder / "x.npy").symlink_to(target)
    assert refusal(folder) == f"'x.npy' is a link that leads out of {folder}; refused"


def test_a_chain_of_links_out_of_the_folder_is_refused(folder: Path) -> None:
    (folder / "y.npy").symlink_to(folder.parent / "outside.npy")
    (folder / "x.npy").symlink_to("y.npy")
    assert "leads out of" in refusal(folder)


def test_a_folder_whose_name_begins_alike_is_outside(folder: Path) -> None:
    sibling = folder.parent / f"{folder.name}_other"
    sibling.mkdir()
    np.save(sibling / "x.npy", np.zeros(3, np.float32))
    (folder / "x.npy").symlink_to(sibling / "x.npy")
    assert "leads out of" in refusal(folder)


def test_links_inside_the_folder_and_a_linked_folder_are_fine(folder: Path) -> None:
    np.save(folder / "real.npy", np.arange(3, dtype=np.float32))
    (folder / "x.npy").symlink_to("real.npy")
    (folder / "y.npy").symlink_to(folder / "real.npy")
    linked = folder.parent / "linked"
    linked.symlink_to(folder)
    for place in (folder, linked):
        for name in ("x.npy", "y.npy", "real.npy"):
            assert load(place, "Float32", (3,), name).tolist() == [0.0, 1.0, 2.0]


def test_a_link_to_nothing_and_a_ring_of_links_are_refused(folder: Path) -> None:
    (folder / "x.npy").symlink_to("gone.npy")
    assert "'x.npy' is not in" in refusal(folder)
    (folder / "a.npy").symlink_to("b.npy")
    (folder / "b.npy").symlink_to("a.npy")
    assert "cannot be opened" in refusal(folder, "a.npy")


def test_a_fifo_is_refused_without_waiting_for_its_writer(folder: Path) -> None:
    fifo = folder / "x.npy"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(refusal, folder)
        try:
            assert waiting.result(timeout=30) == f"'x.npy' in {folder} is not a plain file; refused"
        finally:
            if not waiting.done():  # let the reader go, or the test run would hang as well
                os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


def test_a_folder_in_place_of_the_file_is_refused(folder: Path) -> None:
    (folder / "x.npy").mkdir()
    assert refusal(folder) == f"'x.npy' in {folder} is not a plain file; refused"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(folder: Path) -> None:
    (folder / "x.npy").touch(mode=0)
    assert refusal(folder) == f"'x.npy' in {folder} cannot be opened: Permission denied"


def test_a_file_that_was_refused_is_closed_again(folder: Path) -> None:
    os.mkfifo(folder / "x.npy")
    (folder / "y.npy").write_bytes(b"bad")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        refusal(folder)
        refusal(folder, "y.npy")
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_record_without_a_file_or_without_an_array_type_is_said(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="data_name: the record names no file with real data"):
        load(tmp_path, "Float32", (3,), None)
    with pytest.raises(DumpError, match="data_name: the record names no file with real data"):
        load(tmp_path, None, (3,))
    np.save(tmp_path / "x.npy", np.zeros(3, np.float32))
    assert refusal(tmp_path, dtype="HiFloat8") == "there is no array type for HiFloat8"


GOOD = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }          \n", bytes(12))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example overwrites the one file
@pytest.mark.filterwarnings("ignore")  # NumPy warns of headers that look like Python 2
@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.binary(max_size=6), st.integers(0, 6)), min_size=1, max_size=3))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tmp_path: Path, edits: list[tuple[int, bytes, int]]
) -> None:
    content = GOOD
    for at, inserted, dropped in edits:
        content = content[:at] + inserted + content[at + dropped :]
    (tmp_path / "x.npy").write_bytes(content)
    try:
        found = load(tmp_path, "Float32", (3,))
    except DumpError:
        return
    assert found.shape == (3,)
    assert found.dtype == np.float32
