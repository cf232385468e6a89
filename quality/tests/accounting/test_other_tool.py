"""Pairs of the existing tool and of two frameworks: the catalogue, how answers are counted, how dumps are made."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quality.accounting.other_tool import written
from quality.accounting.other_tool.pairs import ToolPair, verdict
from quality.accounting.other_tool.table import PAIRS, judged
from quality.accounting.other_tool.torch_kernels import OtherDevice, WrongKernel
from quality.accounting.other_tool.values import Run

PLANTED = [pair for pair in PAIRS if pair.expected]
CLEAN = [pair for pair in PAIRS if not pair.expected]


def pair_of(*expected: str, also: tuple[str, ...] = ()) -> ToolPair:
    return ToolPair("a pair", "kernel", "pytorch", expected, also, Run("gan"), Run("gan"))


def fault(kind: str, call: str, name: str = "") -> Any:
    return SimpleNamespace(kind=kind, name=name, step=SimpleNamespace(operation=SimpleNamespace(call=call)))


def named(name: str) -> ToolPair:
    (found,) = (pair for pair in PAIRS if pair.name == name)
    return found


def test_the_catalogue_has_as_many_pairs_as_were_asked_for() -> None:
    planted = Counter(pair.framework == "frameworks" for pair in PLANTED)
    clean = Counter(pair.framework == "frameworks" for pair in CLEAN)
    assert planted[False] >= 40
    assert clean[False] >= 20
    assert planted[True] >= 20
    assert len({(pair.framework, pair.name) for pair in PAIRS}) == len(PAIRS)
    assert {pair.target.level for pair in PAIRS} == {"L1", "mix"}
    assert all(pair.target != pair.golden for pair in PLANTED)


def test_halves_are_about_equal_and_stay_as_they_are() -> None:
    halves = Counter(pair.half for pair in PAIRS)
    assert abs(halves["a"] - halves["b"]) < len(PAIRS) / 5
    assert [named(name).half for name in ("gelu 2 % off, gpt", "tail of a softmax, gpt")] == ["b", "a"]


@pytest.mark.parametrize(
    ("faults", "outcome", "expected"),
    [
        ([fault("born", "Torch.mm.1")], "fault", "exact"),
        ([fault("born", "Torch.mm.1"), fault("born", "Torch.mm.7")], "fault", "exact"),
        ([fault("born", "Torch.mm.1"), fault("constant", "Torch.mm.2")], "fault", "first"),
        ([fault("born", "Torch.mm.1"), fault("rewired", "Torch.mm.3")], "fault", "first"),
        ([fault("born", "Torch.mm.2"), fault("born", "Torch.mm.1")], "fault", "behind"),
        ([fault("rewired", "Torch.mm.1")], "fault", "other"),
        ([], "unaccounted", "unaccounted"),
        ([], "rounding", "all-clear"),
        ([], "equal", "all-clear"),
    ],
)
def test_answers_are_counted_by_what_stands_beside_them(faults: list[Any], outcome: str, expected: str) -> None:
    assert verdict(pair_of("Torch.mm.1", "rewired Torch.mm.3", also=("Torch.mm.7",)), faults, outcome) == expected


@pytest.mark.parametrize(
    ("pattern", "found", "is_right"),
    [
        ("parameter *up.weight", fault("parameter", "Functional.linear.0", "blocks.1.up.weight"), True),
        ("parameter *up.weight", fault("parameter", "Functional.linear.0"), False),
        ("value Functional.linear.0", fault("unknown", "Functional.linear.0"), True),
        ("value Functional.linear.0", fault("rewired", "Functional.linear.0"), False),
        ("batch", fault("batch", "Functional.linear.0"), True),
        ("gradient Torch.mm.0", fault("gradient", "Torch.mm.0"), True),
        ("Torch.mm.0", fault("gradient", "Torch.mm.0"), False),
    ],
)
def test_an_answer_has_the_kind_that_was_planted(pattern: str, found: Any, is_right: bool) -> None:
    assert (verdict(pair_of(pattern), [found], "fault") == "exact") is is_right


def test_a_wrong_kernel_changes_one_call_and_below_autograd() -> None:
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    with WrongKernel("silu", 1, 0, "1.5"):
        first, second = torch.nn.functional.silu(x), torch.nn.functional.silu(x)
    assert torch.equal(second, first * 1.5)
    (second.sum() - first.sum()).backward()
    assert torch.count_nonzero(x.grad) == 0


def test_the_other_device_rounds_otherwise() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(20, 33, generator=generator), torch.randn(40, 33, generator=generator)
    image, filters = torch.randn(2, 6, 9, 9, generator=generator), torch.randn(5, 6, 3, 3, generator=generator)

    def results() -> list[torch.Tensor]:
        return [x @ weight.T, torch.conv2d(image, filters), x.mean(1), x.sum(0), torch.addmm(weight[0, 0], x, weight.T)]

    plain = results()
    with OtherDevice():
        other = results()
    for one, two in zip(plain, other):
        assert torch.allclose(one, two, rtol=1e-5, atol=1e-5)
    assert sum(not torch.equal(one, two) for one, two in zip(plain, other)) >= 4


def test_without_the_existing_tool_the_program_says_what_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(written.VARIABLE, raising=False)
    pair = named("softplus 5 % off, gan")
    (line,) = written.write(tmp_path, [pair], PAIRS)
    assert line == "2 runs of pytorch: MSPROBE_REFERENCE_PYTHON names no Python with the existing tool"
    assert written.read(tmp_path) == []


@pytest.mark.skipif(
    not os.environ.get(written.VARIABLE), reason="MSPROBE_REFERENCE_PYTHON names no Python with the existing tool"
)
def test_a_pair_of_the_existing_tool_is_written_and_answered(tmp_path: Path) -> None:
    pair = named("softplus 5 % off, gan")
    assert written.write(tmp_path, [pair], PAIRS) == []
    ((found, target, golden),) = written.read(tmp_path)
    assert (found.name, found.expected, found.half) == (pair.name, pair.expected, pair.half)
    row = judged(found, target, golden, items=False)
    assert (row.verdict, row.named) == ("exact", ("Functional.softplus.0",))
