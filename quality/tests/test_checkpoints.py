"""The catalogue of conversions: right ones keep every element, wrong ones differ where the catalogue says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from quality.checkpoints.entries import Entry, catalogue, tensors  # noqa: E402

ENTRIES = catalogue()
RIGHT = [entry for entry in ENTRIES if entry.outcome == "equal"]
WRONG = [entry for entry in ENTRIES if entry.outcome == "different"]


def names(entry: Entry) -> str:
    return entry.folder


def elements(content: Any) -> set[bytes]:
    """Return the bytes of each number of parameters and moments; tied ones and replicas count once."""
    found: set[bytes] = set()
    for name, value in tensors(content):
        if value.is_floating_point() and not name.endswith(".step"):
            size = value.element_size()
            raw = value.contiguous().view(torch.uint8).numpy().tobytes()
            found |= {raw[place : place + size] for place in range(0, len(raw), size)}
    return found


@pytest.mark.parametrize("entry", RIGHT, ids=names)
def test_a_right_conversion_has_the_elements_of_the_golden_side(entry: Entry) -> None:
    golden = entry.golden()
    assert elements(entry.convert(golden)) == elements(golden)


@pytest.mark.parametrize("entry", WRONG, ids=names)
def test_a_wrong_conversion_differs_from_the_right_one_where_it_says(entry: Entry) -> None:
    assert entry.broken is not None
    right, wrong = dict(tensors(entry.convert(entry.golden()))), dict(tensors(entry.broken(entry.golden())))
    differing = [name for name in right.keys() | wrong.keys() if not _equal(right.get(name), wrong.get(name))]
    assert differing
    assert [name for name in differing if not any(re.search(pattern, name) for pattern in entry.at)] == []


def _equal(first: Any, second: Any) -> bool:
    return first is not None and second is not None and torch.equal(first, second)


def test_there_are_enough_of_each_kind() -> None:
    assert len(WRONG) >= 30
    assert len(RIGHT) >= 20
    assert all(entry.at and entry.wrong.endswith(".") for entry in WRONG)
    assert all(entry.says for entry in ENTRIES if entry.outcome == "said")


@pytest.mark.parametrize(
    "name", ["rows on three ranks", "torch.distributed.checkpoint of renamed weights", "a word lost"]
)
def test_pairs_are_written(name: str, tmp_path: Path) -> None:
    entry = next(one for one in ENTRIES if one.name == name)
    assert all(path.exists() for path in entry.written(tmp_path / "pair"))
