"""construct.json: parents of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_dumps import real_dumps

from msprobe_collector.dump_format import DumpError, read_construct

DUMPS = real_dumps()


def write(folder: Path, content: Any) -> Path:
    path = folder / "construct.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@pytest.mark.parametrize(
    ("content", "parents"),
    [
        ({}, {}),
        ({"Mint.mul.0.forward": "Cell.a.A.forward.0", "Cell.a.A.forward.0": None}, None),
        (
            {"a": ["b", 0], "b": [None, 1], "megatron_micro_step_number": 4},
            {"a": "b", "b": None},
        ),
    ],
    ids=["L1", "mix", "Megatron"],
)
def test_parents_by_child(tmp_path: Path, content: Any, parents: Any) -> None:
    assert read_construct(write(tmp_path, content)) == (content if parents is None else parents)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"a": ', "is not valid JSON: Input data was truncated"),
        (b'{"a": "\xff"}', "is not valid JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "is not valid JSON: maximum recursion depth"),
        ([], "expected an object of parents, found list"),
        ({"a": 3}, "a: expected the name of the parent or null, found 3"),
        ({"a": []}, "a: expected the name of the parent or null, found []"),
        ({"a": [3, 0]}, "a: expected the name of the parent or null, found 3"),
    ],
)
def test_another_form_is_one_line(tmp_path: Path, content: Any, sentence: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(DumpError) as caught:
        read_construct(path)
    assert str(caught.value).startswith(f"{path}: {sentence}")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"construct\.json: cannot be read: No such file or directory"):
        read_construct(tmp_path / "construct.json")


def test_parents_of_a_real_dump_are_its_own_cells() -> None:
    parents = read_construct(DUMPS / "gpt_tiny_mix/step0/rank0/construct.json")
    cells = {name for name in parents if name.startswith("Cell.")}
    assert {parent for parent in parents.values() if parent is not None} <= cells
    assert any(parent is None for parent in parents.values())
