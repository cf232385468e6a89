from __future__ import annotations

import os
from pathlib import Path

import pytest

from msprobe_collector.dump_format import CallStacks, Dump, DumpError, read_construct
from msprobe_collector.dump_format.yaml_files import read_plain


def sparse(path: Path, start: bytes = b"") -> Path:
    path.write_bytes(start)
    os.truncate(path, 200_000_000_000)
    return path


def test_a_text_ends_at_its_first_nul_byte(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * (1 << 24) + b"bc\0d\0")
    assert read_plain(path) == b"a" * (1 << 24) + b"bc"


def test_a_text_may_be_bounded(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert read_plain(tmp_path / "x", most_bytes=3) == b"abc"
    with pytest.raises(OSError, match="it is larger than 2 bytes"):
        read_plain(tmp_path / "x", most_bytes=2)


def test_sparse_files_of_200_gb_are_read_to_their_hole(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="is not valid JSON: Input data was truncated"):
        Dump(sparse(tmp_path / "dump.json"))
    with pytest.raises(DumpError, match="is not valid JSON"):
        read_construct(sparse(tmp_path / "construct.json"))
    sparse(tmp_path / "stack.json")
    assert "cannot be read" in CallStacks.beside(tmp_path / "dump.json").problem


def test_a_dump_with_a_tail_of_nul_bytes_keeps_its_records(tmp_path: Path) -> None:
    text = b'{\n "task": "statistics", "data": {\n"Mint.a.0.forward": {},\n"Mint.b.0.forward": {"in'
    dump = Dump(sparse(tmp_path / "dump.json", text))
    assert dump.record_names == ["Mint.a.0.forward"]
    assert "was truncated while it was written" in dump.problem
