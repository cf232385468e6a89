"""A part of the catalogue of `python -m quality.accounting`; the whole takes minutes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diagnosing import diagnose

from quality.accounting.causes import Cause
from quality.accounting.clean_pairs import CleanPair
from quality.accounting.framework_pairs import FrameworkPair
from quality.accounting.table import CAUSES, CLEAN, is_right, name_of

#: One of each kind of cause and of each network.
PLANTED = (
    "gelu by tanh",
    "tile of a convolution",
    "gradient of a linear 2 % off",
    "one filter",
    "one pixel of the batch",
    "loss in bfloat16",
    "MindSpore's nn.GELU() against PyTorch's: tanh, erf",
    "one weight, MindSpore against PyTorch",
    "2 % in a softmax of MindSpore",
)
RIGHT = (
    "bfloat16 against float32, cnn, seed 0",
    "float32 against float64, cnn, seed 1",
    "MindSpore against PyTorch, gpt with gelu by tanh",
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _chosen(pairs: Iterable[Any], names: tuple[str, ...]) -> list[Any]:
    marks = {FrameworkPair: [pytest.mark.needs("mindspore")]}
    return [pytest.param(pair, id=pair.name, marks=marks.get(type(pair), ())) for pair in pairs if pair.name in names]


@pytest.mark.parametrize("cause", _chosen(CAUSES, PLANTED))
def test_the_planted_cause_is_named_and_nothing_else(cause: Cause | FrameworkPair, tmp_path: Path) -> None:
    diagnosis = diagnose(*cause.write(tmp_path))
    assert is_right(cause, diagnosis), [name_of(fault) for fault in diagnosis.faults]
    assert diagnosis.outcome == "fault"
    assert len(diagnosis.faults[0].reached) > 0


@pytest.mark.parametrize("pair", _chosen(CLEAN, RIGHT))
def test_nothing_is_blamed_where_nothing_is_wrong(pair: CleanPair | FrameworkPair, tmp_path: Path) -> None:
    diagnosis = diagnose(*pair.write(tmp_path))
    assert diagnosis.faults == ()
    assert diagnosis.outcome == "rounding"


def test_the_catalogue_is_as_large_as_the_table() -> None:
    assert len(CAUSES) >= 24
    assert len(CLEAN) >= 20
    assert set(PLANTED) <= {cause.name for cause in CAUSES}
    assert set(RIGHT) <= {pair.name for pair in CLEAN}
