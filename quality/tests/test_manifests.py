"""The catalogue of planted differences of set-up, and some of its entries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quality.manifests.__main__ import answered
from quality.manifests.catalogue import HELD_OUT, SEEN


@pytest.mark.needs("torch")
def test_entries_of_the_catalogue_are_named_first(tmp_path: Path) -> None:
    for name in ("dropout", "loss scale"):
        (entry,) = [one for one in SEEN if (one.framework, one.name) == ("torch", name)]
        answer = answered(entry, tmp_path)
        assert answer.is_right, answer


def test_every_entry_of_the_catalogue_can_fail() -> None:
    assert len(SEEN) >= 20
    assert len(HELD_OUT) >= 10
    assert {entry.framework for entry in SEEN} == {"torch", "mindspore"}
    for entry in (*SEEN, *HELD_OUT):
        assert re.search(entry.expected, "equal: 1 manifest of a and b") is None
