"""The program on networks of others: what it plants and how it counts, on networks that need no package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from quality.accounting.foreign import fourth_torch, late_torch, precisions, torch_pairs
from quality.accounting.foreign.answers import answered, verdict_of
from quality.accounting.foreign.pairs import Answer, half_of
from quality.accounting.foreign.writing import Pairs


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


#: What may be named, as it is found where a kernel goes wrong or a script says so.
EXPECTED = {
    "windows: sigmoid 0 low forward": ["Tensor.sigmoid.0"],
    "siamese: convolution_backward 0 factor backward of output 1": ["Functional.conv2d.1.backward"],
    "scan: loss in bfloat16": ["Tensor.bfloat16.0"],
}


def test_the_calls_that_go_wrong_are_found_and_named(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path)
    chosen = [pair for pair in torch_pairs.PAIRS if pair.name in EXPECTED]
    assert pairs.write(chosen) == []
    assert {name: pairs[name]["expected"] for name in EXPECTED} == EXPECTED
    assert {name: answered(pairs, name).verdict for name in EXPECTED} == dict.fromkeys(EXPECTED, "exact")
    assert Pairs(tmp_path).write(chosen) == []  # nothing is written twice


#: Pairs of mixed precision, and what may be named for them.
PRECISIONS = {
    "readings: autocast against float32": [],
    "segments: bfloat16 against float32": [],
    "towers: GradScaler, another order": [],
    "towers: another scale": ["Torch.full.0"],
    "readings: gelu 0, autocast against float32": ["Functional.gelu.0"],
    "towers: tanh_backward 0, GradScaler": ["Torch.tanh.0.backward"],
}


def test_right_runs_of_other_precision_blame_nothing_and_wrong_ones_the_call(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path)
    assert pairs.write(pair for pair in precisions.PAIRS if pair.name in PRECISIONS) == []
    assert {name: pairs[name]["expected"] for name in PRECISIONS} == PRECISIONS
    assert {name: answered(pairs, name).verdict for name in PRECISIONS} == dict.fromkeys(PRECISIONS, "exact")


#: What is named of pairs whose blocks are checkpointed.
CHECKPOINTED = {
    "checkpointed: gelu factor in the first forward only": ("Functional.gelu.1.forward (born)",),
    "checkpointed: gelu factor in the recomputation only": ("Functional.gelu.1.backward (recomputed)",),
    "checkpointed, reentrant: gelu factor in the first forward only": ("Functional.gelu.1.forward (born)",),
    "checkpointed, reentrant: gelu factor in the recomputation only": ("Functional.gelu.1.backward (recomputed)",),
    "checkpointed: another order": (),
}


def test_what_one_of_the_two_forwards_of_a_checkpoint_does_is_told_of_its_call(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path)
    assert pairs.write([pair for pair in torch_pairs.PAIRS if pair.name in CHECKPOINTED]) == []
    rows = {name: answered(pairs, name) for name in CHECKPOINTED}
    assert {name: row.named for name, row in rows.items()} == CHECKPOINTED
    assert {row.verdict for row in rows.values()} == {"exact"}


def test_a_fault_that_does_not_happen_is_no_pair(tmp_path: Path) -> None:
    pair = torch_pairs._kernel("windows", "sigmoid", 7)
    (failed,) = Pairs(tmp_path).write([pair])
    assert "did not happen" in failed


@pytest.mark.parametrize(
    ("outcome", "faults", "answer", "verdict"),
    [
        ("fault", [["Torch.mm.1", "Torch.mm.1.forward"]], "fault", "exact"),
        ("fault", [["Torch.mm.1", "Torch.mm.1.forward"], ["batch"]], "fault", "right first"),
        ("fault", [["batch"], ["Torch.mm.1", "Torch.mm.1.forward"]], "fault", "innocent first"),
        ("fault", [["rewired Torch.mm.1"]], "fault", "not found"),
        ("fault", [["Torch.mm.10"]], "fault", "not found"),
        ("unaccounted", [], "fault", "not found"),
        ("unaccounted", [], "unaccounted", "exact"),
        ("rounding", [], "fault", "false all-clear"),
        ("equal", [], "unaccounted", "false all-clear"),
        ("rounding", [], "nothing", "exact"),
        ("fault", [["Torch.mm.1"]], "nothing", "blamed"),
    ],
)
def test_answers_are_counted(outcome: str, faults: list[list[str]], answer: Answer, verdict: str) -> None:
    assert verdict_of(outcome, faults, ["Torch.mm.1"], answer) == verdict


def test_the_catalogue_has_two_halves_and_no_name_twice() -> None:
    names = [pair.name for pair in torch_pairs.PAIRS]
    assert len(set(names)) == len(names)
    assert half_of("a name") == half_of("a name")
    for half in "ab":
        own = [pair for pair in torch_pairs.PAIRS if pair.half == half]
        assert sum(pair.kind != "clean" for pair in own) >= 60
        assert sum(pair.kind == "clean" for pair in own) >= 20


def test_the_third_part_is_apart() -> None:
    names = [pair.name for pair in (*torch_pairs.PAIRS, *late_torch.PAIRS)]
    assert len(set(names)) == len(names)
    assert {pair.half for pair in late_torch.PAIRS} == {"c"}
    assert not {pair.network for pair in torch_pairs.PAIRS} & {pair.network for pair in late_torch.PAIRS}
    assert sum(pair.kind != "clean" for pair in late_torch.PAIRS) >= 60
    assert sum(pair.kind == "clean" for pair in late_torch.PAIRS) >= 45


def test_a_planted_place_of_the_third_part_is_found(tmp_path: Path) -> None:
    names = ("codes: commitment of the code", "flow: softplus 2 low forward")
    pairs = Pairs(tmp_path)
    assert pairs.write([pair for pair in late_torch.PAIRS if pair.name in names]) == []
    assert "gradient Functional.embedding.0" in pairs["codes: commitment of the code"]["expected"]
    assert pairs["flow: softplus 2 low forward"]["expected"] == ["Functional.softplus.2"]


def test_the_fourth_part_is_apart() -> None:
    before = (*torch_pairs.PAIRS, *precisions.PAIRS, *late_torch.PAIRS)
    names = [pair.name for pair in (*before, *fourth_torch.PAIRS)]
    assert len(set(names)) == len(names)
    assert {pair.half for pair in fourth_torch.PAIRS} == {"d"}
    assert not {pair.network for pair in before} & {pair.network for pair in fourth_torch.PAIRS}
    assert sum(pair.kind != "clean" for pair in fourth_torch.PAIRS) >= 80
    assert sum(pair.kind == "clean" for pair in fourth_torch.PAIRS) >= 45


def test_a_planted_place_of_the_fourth_part_is_found(tmp_path: Path) -> None:
    expected = {
        "capsules: margin": ["Tensor.__rsub__.0"],
        "spectral: _fft_c2r 1 tile forward": ["Torch.fft.irfft2.1"],
        "ponder: left before 1": ["rewired Tensor.unsqueeze.1"],
    }
    pairs = Pairs(tmp_path)
    assert pairs.write([pair for pair in fourth_torch.PAIRS if pair.name in expected]) == []
    assert {name: pairs[name]["expected"] for name in expected} == expected
