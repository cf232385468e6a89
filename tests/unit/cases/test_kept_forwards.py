"""Which forwards of an API call stay in memory, and so how often one runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from counted_engine import CountedEngine
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import Dump
from pytest_msprobe.cases.call_run import OUTPUTS, CallRun


def forwards(folder: Path, elements: int, variant: str) -> tuple[int, list[np.ndarray]]:
    """(forwards that ran, outputs) where the same outputs are asked for twice."""
    pytest.importorskip("torch")
    array = np.linspace(-1, 1, elements, dtype=np.float32)
    path = DumpBuilder(folder).call("Mint.exp.0", [array], [np.exp(array)]).write()
    run = CallRun(Dump(path), "Mint.exp.0", with_backward=False, max_memory_bytes=1 << 30)
    engine = CountedEngine()
    outputs = [run.ask(engine, OUTPUTS, variant=variant) for _ in range(2)]
    return engine.forwards, [found[0].value for found in outputs]


@pytest.mark.parametrize(
    ("elements", "variant", "ran"),
    [(8, "", 1), (8, "moved", 1), (1 << 20, "", 1), (1 << 20, "moved", 2)],
    ids=["small", "variant of a small one", "large", "variant of a large one"],
)
def test_the_forward_of_a_large_variant_is_not_kept(tmp_path: Path, elements: int, variant: str, ran: int) -> None:
    count, (first, second) = forwards(tmp_path, elements, variant)
    assert count == ran
    np.testing.assert_array_equal(first, second)
