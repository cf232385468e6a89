"""What a checkpoint from strangers may hold: each fault is one line, the rest is compared, nothing runs."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_msprobe.__main__ import main

ONES = np.ones(4, np.float32)


def safetensors(header: dict[str, Any] | str, content: bytes = ONES.tobytes() * 2) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + content


def entry(start: int, stop: int, shape: Any = (4,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


GOOD = {"a": entry(0, 16), "b": entry(16, 32)}


def archive(value: bytes, **members: bytes) -> bytes:
    """A file of torch.save with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("x/data.pkl", value)
        for name, content in members.items():
            made.writestr(f"x/data/{name}", content)
    return file.getvalue()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return __import__("os").system, ("touch pwned",)


def nested(depth: int, width: int) -> object:
    """Lists that hold each other: as many leaves as width to the power of depth."""
    value: object = "lol"
    for _ in range(depth):
        value = [value] * width
    return value


#: The file, what its line says, and the exit code of its comparison with a good one; 2 is "refused".
FILES: dict[str, tuple[bytes, str, int]] = {
    "overlapping": (safetensors({"a": entry(0, 16), "b": entry(8, 24)}), "'a' and 'b' overlap in the file", 5),
    "absurd shape": (
        safetensors(GOOD | {"c": entry(0, 16, (2**60, 2**60))}),
        "'c': no tensor has the shape [1152921504606846976, 1152921504606846976]",
        5,
    ),
    "negative shape": (safetensors(GOOD | {"c": entry(0, 16, (-4,))}), "'c': its shape is [-4]", 5),
    "shape of numbers that are none": (safetensors(GOOD | {"c": entry(0, 16, (True, 4.0))}), "'c': its shape is", 5),
    "other size": (
        safetensors(GOOD | {"c": entry(0, 16, (5,))}),
        "'c': Float32 (5,) needs 20 bytes, the file has 16",
        5,
    ),
    "offsets": (safetensors(GOOD | {"c": entry(16, 0)}), "'c': its offsets are [16, 0]", 5),
    "behind the end": (safetensors(GOOD | {"c": entry(32, 48)}), "'c': is cut off: it ends at byte", 5),
    "unknown dtype": (safetensors(GOOD | {"c": entry(0, 16, dtype="F4")}), "'c': dtype 'F4' is not known", 5),
    "no description": (safetensors(GOOD | {"c": 5}), "'c': its description is damaged: 5", 5),
    "name twice": (
        safetensors(json.dumps(GOOD)[:-1] + ', "a": ' + json.dumps(GOOD["a"]) + "}"),
        "'a' stands twice in its header",
        5,
    ),
    "torn header": (safetensors(GOOD)[:40], "is not a safetensors file, or cut off", 2),
    "header of gigabytes": (b"\xff\xff\xff\xff\1\0\0\0{" + bytes(50), "its header should have 8589934591 bytes", 2),
    "header without end": (safetensors("{" * 90_000, b""), "its header is damaged", 2),
    "control characters": (
        safetensors(GOOD | {"\x1b[31m\n\u202ec": entry(16, 0)}),
        r"'\x1b[31m\n\u202ec': its offsets are",
        5,
    ),
    "empty": (b"", "is empty", 2),
    "text": (b"hello, this is no checkpoint at all", "is no checkpoint: neither safetensors", 2),
    "code": (archive(pickle.dumps({"a": Evil()})), "needs code to load: posix.system; it was not run", 1),
    "plain pickle": (pickle.dumps({"a": Evil()}), "is a pickle, not a checkpoint of torch.save", 2),
    "lists of lists": (archive(pickle.dumps(nested(40, 10))), "it describes more than 1000000 values", 2),
    "deep": (archive(b"\x80\x02" + b"]" * 500 + b"a" * 499 + b"."), "nested more than 64 deep", 2),
    "torn pickle": (archive(pickle.dumps({"a": 1})[:-3]), "its description is damaged or cut off", 2),
    "no storage": (
        archive(
            b"\x80\x02}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
            b"X\1\0\0\x000X\3\0\0\0cpuK\4tQK\0K\4\x85K\1\x85\x89NtRs."
        ),
        "'a': its storage '0' is missing",
        1,
    ),
    "encrypted": (b"\xd8^:\x7f" + bytes(60), "is encrypted (MindSpore enc_key)", 2),
    "torn protobuf": (b"\n\x32\n\7a.gamma\x12\x27\x08\2", "is no MindSpore checkpoint, or damaged", 2),
    "endless number": (b"\n" + b"\xff" * 30, "a number of more than 64 bits", 2),
    "NumPy": (b"\x93NUMPY\1\0" + bytes(60), "a NumPy or HDF5 file", 2),
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    path.write_bytes(safetensors(GOOD))
    return path


def said(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """The one line with these words."""
    streams = capsys.readouterr()
    text = streams.out + streams.err
    (line,) = [line for line in text.splitlines() if words in line]
    assert line.isprintable()
    return line


@pytest.mark.parametrize("name", FILES)
def test_file(
    name: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content, words, code = FILES[name]
    monkeypatch.chdir(tmp_path)
    bad = tmp_path / "bad"
    bad.write_bytes(content)
    assert main(["checkpoints", str(bad), str(good)]) == code
    assert str(bad) in said(capsys, words)
    assert not (tmp_path / "pwned").exists()


def test_what_is_not_damaged_is_compared(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(safetensors(GOOD | {"c": entry(16, 0)}))
    main(["checkpoints", str(bad), str(good)])
    assert said(capsys, "Nothing judged: 1 problems: what cannot be read was not compared; 2 tensors equal, 0 differ")


def test_compressed_members_are_not_inflated(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad"
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("x/data.pkl", bytes(1 << 24))
    assert main(["checkpoints", str(bad), str(good)]) == 2
    assert said(capsys, "'x/data.pkl' is compressed; torch.save stores members as they are")


INDICES: dict[str, tuple[Any, str]] = {
    "parent": ({"a": "good.safetensors", "b": "../outside"}, "names '../outside', which is not a file in this folder"),
    "absolute": ({"a": "good.safetensors", "b": "/etc/passwd"}, "names '/etc/passwd'"),
    "missing": ({"a": "good.safetensors", "b": "none.safetensors"}, "none.safetensors: does not exist"),
    "folder": ({"a": "good.safetensors", "b": "."}, "not a file in this folder"),
    "link": ({"a": "good.safetensors", "b": "link"}, "outside the checkpoint; name that file itself"),
    "not in the file": ({"a": "good.safetensors", "z": "good.safetensors"}, "'z' is not in 'good.safetensors'"),
    "not listed": ({"a": "good.safetensors"}, "does not list 'b' of 'good.safetensors'"),
    "no index": (5, "is not an index: it has no weight_map"),
}


@pytest.mark.parametrize("name", INDICES)
def test_index(name: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight_map, words = INDICES[name]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "good.safetensors").write_bytes(good.read_bytes())
    (tmp_path / "outside").write_bytes(good.read_bytes())
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert main(["checkpoints", str(folder), str(good)]) in (1, 2, 5)
    assert said(capsys, words)


def test_links_of_the_cache_of_huggingface_are_followed(good: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--x" / "snapshots" / "1234"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--x" / "blobs").mkdir()
    (tmp_path / "models--x" / "blobs" / "abcd").write_bytes(good.read_bytes())
    (snapshot / "model.safetensors").symlink_to("../../blobs/abcd")
    assert main(["checkpoints", str(snapshot), str(good)]) == 0


def test_a_file_that_ends_while_it_is_read(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from msprobe_checkpoints.comparison import compare
    from msprobe_checkpoints.folders import read_checkpoint

    bad = tmp_path / "bad"
    bad.write_bytes(good.read_bytes())
    sides = [read_checkpoint(bad), read_checkpoint(good)]
    with bad.open("r+b") as file:
        file.truncate(bad.stat().st_size - 8)
    result = compare(*sides, lambda done, total: None)
    assert [difference.name for difference in result.compared] == ["a"]
    assert len(result.problems) == 1
    assert result.exit_code == 5


def test_a_folder_without_checkpoint(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["checkpoints", str(tmp_path / "empty"), str(good)]) == 2
    assert said(capsys, "holds no checkpoint: no .safetensors, .bin, .pt")
