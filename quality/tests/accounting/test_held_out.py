"""A part of the held-out catalogue: dumps of the collector, each written by a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from diagnosing import diagnose

from quality.accounting.held_out.catalogue import CAUSES, CLEAN, HeldOut
from quality.accounting.table import is_right, name_of

#: What the first run missed, by name.
PLANTED = ("a layer in bfloat16", "eps of batch norm", "stride 1 for 2 in a pool", "labels reversed")
RIGHT = ("float16 against float64, mixer",)


def _chosen(pairs: tuple[HeldOut, ...], names: tuple[str, ...]) -> list[object]:
    return [
        pytest.param(
            pair, id=pair.name, marks=[pytest.mark.needs("mindspore")] if pair.framework == "mindspore" else []
        )
        for pair in pairs
        if pair.name in names
    ]


@pytest.mark.parametrize("cause", _chosen(CAUSES, PLANTED))
def test_the_planted_cause_is_named_and_nothing_else(cause: HeldOut, tmp_path: Path) -> None:
    diagnosis = diagnose(*cause.write(tmp_path))
    assert is_right(cause, diagnosis), [name_of(fault) for fault in diagnosis.faults]


@pytest.mark.parametrize("pair", _chosen(CLEAN, RIGHT))
def test_nothing_is_blamed_where_nothing_is_wrong(pair: HeldOut, tmp_path: Path) -> None:
    diagnosis = diagnose(*pair.write(tmp_path))
    assert diagnosis.faults == ()
    assert diagnosis.outcome == "rounding"


def test_the_catalogue_is_as_large_as_the_table() -> None:
    assert len(CAUSES) == 32
    assert len(CLEAN) == 13
    assert len({(pair.name, pair.framework, pair.network) for pair in (*CAUSES, *CLEAN)}) == 45
