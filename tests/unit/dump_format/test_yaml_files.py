"""YAML that may come from elsewhere: values, or one clear line, in bounded time and memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.dump_format.yaml_files import YamlFileError, read_yaml


def read(folder: Path, text: str | bytes) -> Any:
    path = folder / "x.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_yaml(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: [1, b, null]", {"a": [1, "b", None]}),
        ("\ufeffa: 1", {"a": 1}),
        ("x: &x {a: 1}\ny: *x\nz: {<<: *x, b: 2}", {"x": {"a": 1}, "y": {"a": 1}, "z": {"a": 1, "b": 2}}),
    ],
)
def test_values_come_back(tmp_path: Path, text: str, value: Any) -> None:
    assert read(tmp_path, text) == value


def lists_of_lists() -> str:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join(levels)


def merges_of_merges() -> str:
    levels = ["a0: &a0 {a: 1, b: 2, c: 3}"]
    levels += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    return "\n".join(levels)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (lists_of_lists(), "has aliases that stand for more than 1000000 values"),
        (merges_of_merges(), "has aliases that stand for more than 1000000 values"),
        ("a: &a [*a]", "has an alias inside the value that it refers to"),
        ("[" * 5000, "is nested too deeply"),
        ("[" * 300_000 + "]" * 300_000, "is nested too deeply"),
        ("{a: " * 1000 + "}" * 1000, "is nested too deeply"),
        (f"[{'x,' * 1_000_000}]", "has more than 100000 values"),
        ("a: &a [1]\n" + "b: [" + "*a, " * 150_000 + "]", "has more than 100000 values"),
        ("a: [", "is not valid YAML: "),
        ("a: 2024-99-99", "is not valid YAML: "),
        ("a: !!python/object/apply:os.system [x]", "is not valid YAML: could not determine a constructor"),
        ("a: \x1b", "is not valid YAML: "),
        (b"\xff\xfe\xfd", "is not valid YAML: "),
        ("x" * ((1 << 21) + 1), "cannot be read: it is larger than 2097152 bytes"),
    ],
    ids=range(14),
)
def test_what_cannot_be_used_is_said_in_one_line(tmp_path: Path, text: str | bytes, problem: str) -> None:
    with pytest.raises(YamlFileError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(problem)
    assert str(caught.value).isprintable()


def test_a_sparse_file_of_200_gb_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.touch()
    os.truncate(path, 200_000_000_000)
    assert read_yaml(path) is None


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(YamlFileError, match="cannot be read: No such file or directory"):
        read_yaml(tmp_path / "none.yaml")
