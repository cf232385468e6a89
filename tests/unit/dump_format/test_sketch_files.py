"""The side file of sketches: written in numbered rows, read without guessing what is not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import Dump, DumpError
from msprobe_collector.dump_format.leaves import Leaf, flatten
from msprobe_collector.dump_format.sketch_files import SKETCH_FILE, SketchFile, SketchRows
from msprobe_collector.dump_format.sketches import NUMBERS, SEED, VERSION, SketchRow, row_of
from msprobe_collector.dump_format.writing.encoding import TensorValues, statistics_of

ARRAYS = [np.random.default_rng(seed).standard_normal((6, 10)).astype(np.float32) for seed in range(3)]


def entry(array: np.ndarray[Any, Any], key: str, **changed: Any) -> str:
    found = statistics_of(array)
    fields = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(array.shape),
        **dict(zip(("Max", "Min", "Mean", "Norm"), found)),
        **({"NaN_count": found.nan_count, "Inf_count": found.inf_count} if found.nan_count + found.inf_count else {}),
        **changed,
    }
    return json.dumps(fields)[:-1] + key + "}"


@pytest.fixture
def dump_of(tmp_path: Path) -> Callable[..., tuple[Dump, list[Leaf]]]:
    """dump_of(arrays, keys=None, **changed) -> (dump, leaves); `keys` stand in the records instead of right ones."""

    def make(
        arrays: list[np.ndarray[Any, Any]], keys: list[str] | None = None, **changed: Any
    ) -> tuple[Dump, list[Leaf]]:
        rows = SketchRows(tmp_path / SKETCH_FILE)
        rows.create()
        right = [rows.add(row_of(array)) for array in arrays]
        rows.close()
        values = ", ".join(entry(array, key, **changed) for array, key in zip(arrays, keys or right))
        text = f'{{"task": "statistics", "data": {{"Torch.add.0.forward": {{"output": [{values}]}}}}}}'
        (tmp_path / "dump.json").write_text(text)
        dump = Dump(tmp_path / "dump.json")
        return dump, flatten(dump.record("Torch.add.0.forward"))

    return make


def test_rows_are_read_again(dump_of: Any) -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 2e38], np.float32)
    dump, leaves = dump_of([*ARRAYS, odd])
    assert dump.holds_sketches
    assert dump.damage() == []
    for leaf, array in zip(leaves, [*ARRAYS, odd]):
        sketch = dump.sketch(leaf)
        row = row_of(array)
        numbers = np.ldexp(row.numbers.astype(np.float64), row.exponent)
        assert sketch.counters.tolist() == (numbers[:32] + 1j * numbers[32:]).tolist()
        assert (sketch.shape, sketch.not_finite) == (array.shape, row.not_finite)


def test_a_row_takes_256_bytes(dump_of: Any, tmp_path: Path) -> None:
    dump_of(ARRAYS)
    assert (tmp_path / SKETCH_FILE).stat().st_size == 256 * (1 + len(ARRAYS))
    head = (tmp_path / SKETCH_FILE).read_bytes()[:256]
    assert json.loads(head) == {"sketches": VERSION, "numbers": NUMBERS, "seed": SEED}


def test_a_dump_without_sketches_has_none(tmp_path: Path) -> None:
    keywords = f'{{"sketch": {entry(ARRAYS[0], "")}}}'
    text = f'{{"task": "statistics", "data": {{"Torch.add.0.forward": {{"input_kwargs": {keywords}}}}}}}'
    (tmp_path / "dump.json").write_text(text)
    dump = Dump(tmp_path / "dump.json")
    (leaf,) = flatten(dump.record("Torch.add.0.forward"))
    assert (dump.holds_sketches, dump.sketch(leaf), dump.damage()) == (False, None, [])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("sketches", 2, "sketches 2"), ("numbers", 32, "numbers 32"), ("seed", 7, "seed 7"), ("seed", None, "seed None")],
)
def test_another_definition_is_refused(dump_of: Any, tmp_path: Path, key: str, value: Any, words: str) -> None:
    dump, leaves = dump_of(ARRAYS)
    path = tmp_path / SKETCH_FILE
    head = {"sketches": VERSION, "numbers": NUMBERS, "seed": SEED, key: value}
    path.write_bytes(json.dumps(head).ljust(255).encode() + b"\n" + path.read_bytes()[256:])
    with pytest.raises(DumpError, match=f"sketches with {words} cannot be used here, only .* with one version"):
        dump.sketch(leaves[0])
    assert words in dump.damage()[0]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]" + b" " * 300, b"\xff" * 400, b'{"sketches": 1}', b"[" * 256])
def test_other_files_are_refused(dump_of: Any, tmp_path: Path, content: bytes) -> None:
    dump, leaves = dump_of(ARRAYS)
    (tmp_path / SKETCH_FILE).write_bytes(content)
    with pytest.raises(DumpError, match="is not a file of sketches"):
        dump.sketch(leaves[0])


def test_a_missing_file_is_named(dump_of: Any, tmp_path: Path) -> None:
    dump, leaves = dump_of(ARRAYS)
    (tmp_path / SKETCH_FILE).unlink()
    with pytest.raises(DumpError, match=r"sketches\.bin: cannot be read \(No such file.* collect the step again"):
        dump.sketch(leaves[0])
    assert "cannot be read" in dump.damage()[0]
    os.mkfifo(tmp_path / SKETCH_FILE)
    with pytest.raises(DumpError, match="not a plain file"):
        dump.sketch(leaves[0])


def test_rows_that_were_not_written_are_missing(dump_of: Any, tmp_path: Path) -> None:
    dump, leaves = dump_of(ARRAYS)
    os.truncate(tmp_path / SKETCH_FILE, 256 * 3 + 100)
    dump = Dump(dump.path)
    assert dump.sketch(leaves[1]) is not None
    with pytest.raises(
        DumpError, match=r"output\[2\]\.sketch: row 2 is not in .*, which holds 2 rows \(was the training"
    ):
        dump.sketch(leaves[2])
    assert "lacks the sketches of 1 of 3 values" in dump.damage()[0]


@pytest.mark.parametrize(
    "key",
    """ "x" | -1 | 1.5 | null | true | [0] | {"row": "a"} | {"row": 0, "exponent": 1e9} | {"row": 0, "exponent": 99999}
    | {"row": 0, "not_finite": 3} | {"row": 0, "not_finite": [0, 0, -1]} | {"exponent": 3}""".split("|"),
)
def test_malformed_keys_are_said(dump_of: Any, key: str) -> None:
    dump, leaves = dump_of(ARRAYS[:1], [f', "sketch": {key}'])
    with pytest.raises(DumpError, match=r"output\[0\]\.sketch: expected the number of a row, found"):
        dump.sketch(leaves[0])


def test_a_row_beyond_the_file_is_said(dump_of: Any) -> None:
    dump, leaves = dump_of(ARRAYS[:1], [f', "sketch": {10**14}'])
    with pytest.raises(DumpError, match="which holds 1 rows"):
        dump.sketch(leaves[0])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"Norm": 1000.0}, "its norm is about .*, and Norm 1e.03"),
        ({"Norm": 0.0}, ".* and Norm 0"),
        ({"NaN_count": 3, "Inf_count": 0}, "0 NaN and 0 Inf, where these are 3 and 0"),
    ],
)
def test_a_sketch_that_contradicts_its_statistics_is_said(dump_of: Any, changed: dict[str, Any], words: str) -> None:
    dump, leaves = dump_of(ARRAYS, **changed)
    with pytest.raises(DumpError, match=f"row 0 of .* contradicts the statistics: {words}"):
        dump.sketch(leaves[0])


def test_rows_that_hold_nan_are_said(dump_of: Any, tmp_path: Path) -> None:
    dump, leaves = dump_of(ARRAYS)
    with open(tmp_path / SKETCH_FILE, "r+b") as file:
        file.seek(256)
        file.write(b"\xff" * 256)
    with pytest.raises(DumpError, match="contradicts the statistics: it holds NaN or Inf"):
        dump.sketch(leaves[0])


def test_many_rows_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: list[int] = []
    stack = np.stack
    monkeypatch.setattr(np, "stack", lambda numbers: stacks.append(len(numbers)) or stack(numbers))
    rows = SketchRows(tmp_path / SKETCH_FILE)
    rows.create()
    for number in range(600):
        assert rows.add(SketchRow(np.full(NUMBERS, number, np.float32))) == f', "sketch": {number}'
    rows.close()
    rows.close()
    assert stacks == [*[64] * 9, 24]
    found = SketchFile(tmp_path / SKETCH_FILE)
    assert len(found.numbers) == 600
    assert found.numbers[:, 0].tolist() == list(range(600))


def test_a_value_is_known_by_its_content(tmp_path: Path) -> None:
    rows = SketchRows(tmp_path / SKETCH_FILE)
    rows.create()
    key = rows.add(row_of(ARRAYS[0]), ("float32", 3))
    assert rows.known(("float32", 3)) == key
    assert rows.known("other") == ""
    rows.close()


def test_content_is_that_of_dtype_shape_and_bits() -> None:
    array: np.ndarray[Any, Any] = ARRAYS[0]
    others: list[np.ndarray[Any, Any]] = [
        array.T,
        array.reshape(10, 6),
        array[::-1],
        array.T.copy(),
        array.astype(np.float64),
        -array,
        array[:5],
    ]
    contents = [TensorValues(other, other.dtype.name, "").content() for other in [array, *others]]
    assert len(set(contents)) == len(contents)
    assert TensorValues(array.copy(), "float32", "").content() == contents[0]
    assert TensorValues(np.float32(3).reshape(()), "float32", "").content() is not None
    assert TensorValues(np.zeros((0, 3)), "float64", "").content() is not None
