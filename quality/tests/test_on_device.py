"""quality/on_device: its table, and a network of it on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from quality.on_device.__main__ import COSTS, HEAD, SMALL, told
from quality.results import read


def test_the_table_has_the_columns_and_costs_of_the_program() -> None:
    table = read("on_device")
    assert tuple(table[0]) == HEAD
    measured = {(row["network"], row["what"]) for row in table}
    assert {(f"{name}, {dtype}", f"{level} {task}") for name, dtype, level, task in COSTS} <= measured


def test_times_leave_the_first_step_out() -> None:
    bare = {"seconds": [9.0, 0.02, 0.01], "bytes": 0}
    assert told(bare) == "0.010 to 0.020 s a step"
    assert told({"seconds": [9.0, 0.05], "bytes": 3e9}, bare) == "0.050 to 0.050 s a step, 5.0 x, 3.00 GB"
    assert told({"error": "no memory"}, bare) == "no memory"


def test_a_network_trains_alike_bare_and_collected(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from quality.on_device import networks
    from quality.on_device.__main__ import trained

    assert tuple(networks.SMALL) == SMALL
    bare = trained("vit", "cpu", "-", "mix", "tensor", "float32", 1)
    collected = trained("vit", "cpu", tmp_path / "dump", "mix", "tensor", "float32", 1)
    assert bare["digest"] == collected["digest"]
    assert collected["bytes"] > 0
