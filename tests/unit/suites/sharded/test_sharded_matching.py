"""Which calls of ranks are parts of which call of the logical run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.suites.sharded.matching import RecordMatching, named, parameter_of
from pytest_msprobe.suites.sharded.ranks import RankDump


def run(folder: Path, microbatches: int, *, is_known: bool = True) -> RankDump:
    """A layer that takes two items of each microbatch."""
    builder, parents = DumpBuilder(folder), {}
    for number in range(2 * microbatches):
        builder.records[f"Tensor.__getitem__.{number}.forward"] = {"input_args": [], "input_kwargs": {}, "output": []}
        parents[f"Tensor.__getitem__.{number}.forward"] = f"Module.attn.Attn.forward.{number // 2}"
        if number % 2:
            builder.records[parents[f"Tensor.__getitem__.{number}.forward"]] = {"output": []}
    builder.write()
    if is_known:
        (folder / "construct.json").write_text(json.dumps(parents), encoding="utf-8")
    return RankDump(folder / "dump.json")


def test_calls_of_a_layer_belong_to_its_microbatches(tmp_path: Path) -> None:
    matching = RecordMatching(run(tmp_path / "one", 1), [run(tmp_path / "rank0", 3)], {})
    for number in (0, 1):
        (calls,), reason = matching.parts(f"Tensor.__getitem__.{number}.forward")
        assert reason == ""
        assert calls.records == tuple(f"Tensor.__getitem__.{2 * batch + number}.forward" for batch in range(3))


def test_without_layers_calls_follow_each_other(tmp_path: Path) -> None:
    sides = run(tmp_path / "one", 1, is_known=False), [run(tmp_path / "rank0", 2, is_known=False)]
    (calls,), _ = RecordMatching(*sides, {}).parts("Tensor.__getitem__.1.forward")
    assert calls.records == ("Tensor.__getitem__.2.forward", "Tensor.__getitem__.3.forward")


def halved(folder: Path, place: int) -> RankDump:
    """Three layers, and a call behind the first one, from one of which on all is in half precision; 9 for none."""
    builder = DumpBuilder(folder)
    for number, name in enumerate(("Module.a.A.forward.0", "Torch.neg.0.forward", "Module.b.B.forward.0")):
        value = np.ones(2, np.float16 if number >= place else np.float32)
        builder.records[name] = {"input_args": [], "input_kwargs": {}, "output": [builder.value(value, name)]}
    builder.write()
    return RankDump(folder / "dump.json")


@pytest.mark.parametrize(("place", "expected"), [(0, 0), (1, 2), (2, 2), (9, math.inf)])
def test_half_dtypes_of_ranks_are_told_by_layers(tmp_path: Path, place: int, expected: float) -> None:
    ranks = [halved(tmp_path / "rank0", 9), halved(tmp_path / "rank1", place)]
    assert RecordMatching(halved(tmp_path / "one", 9), ranks, {}).half_from() == expected


@pytest.mark.parametrize(
    ("path", "name", "other"),
    [
        ("input.parameters.a.weight", "a.weight", "input.parameters.b"),
        ("output.0.state.a.weight.exp_avg", "a.weight", "output.0.state.b.exp_avg"),
        ("output.0", "", "output.0"),
    ],
)
def test_names_at_the_optimizer(path: str, name: str, other: str) -> None:
    assert parameter_of(path) == name
    assert named(path, lambda _: "b") == other
