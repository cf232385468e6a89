"""What a checkpoint computes again is compared with the first time, and told in the backward records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from msprobe_collector.dump_format import Dump
from msprobe_collector.pytorch import tensor_values
from msprobe_collector.pytorch.tensor_values import sum_of_bits

MARK = {"type": "str", "value": "differs"}
BOTH = pytest.mark.parametrize("reentrant", [False, True])


class Wrong(TorchDispatchMode):
    """One kernel that is 2 % off at its `call`-th call."""

    def __init__(self, operator: str, call: int) -> None:
        super().__init__()
        self.operator, self.call = operator, call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == self.operator:
            self.call -= 1
            if self.call == -1:
                out.mul_(1.02)
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        side = x.sin().transpose(0, 1).cos()
        hidden = functional.gelu(self.up(x)).view(3, 8)
        return self.down(hidden) + side.t()


Run = Callable[..., set[str]]


@pytest.fixture
def marked(make_debugger: Any, records: Any) -> Run:
    """Runs a step, and gives the names of the calls whose backward records are marked."""

    def run(block: Callable[[Tensor], Tensor], mode: Any = None, **of_checkpoint: Any) -> set[str]:
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        with make_debugger().collect(), mode or _nothing():
            checkpoint(block, x, **of_checkpoint).square().sum().backward()
        found = {name: record["recomputed"] for name, record in records().items() if "recomputed" in record}
        assert all(mark == MARK and name.endswith(".backward") for name, mark in found.items())
        return {name.removesuffix(".backward") for name in found}

    return run


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@BOTH
def test_an_equal_recomputation_leaves_no_mark(reentrant: bool, marked: Run) -> None:
    assert marked(Block(), use_reentrant=reentrant) == set()


@BOTH
@pytest.mark.parametrize("call", [0, 1])  # of the first forward, and of the recomputation
def test_the_call_that_differs_and_what_gets_its_result_are_marked(reentrant: bool, call: int, marked: Run) -> None:
    # The linear, at which the kind that is not reentrant stops early, has got other values; sin, cos have not.
    found = marked(Block(), Wrong("gelu", call), use_reentrant=reentrant)
    assert found == {"Functional.gelu.0", "Functional.linear.1"} | ({"Tensor.__add__.0"} if reentrant else set())


def test_without_early_stop_the_last_calls_are_compared_too(marked: Run) -> None:
    with set_checkpoint_early_stop(False):
        found = marked(Block(), Wrong("gelu", 1), use_reentrant=False)
    assert {"Functional.gelu.0", "Functional.linear.1"} <= found
    assert not {"Functional.linear.0", "Tensor.sin.0", "Tensor.cos.0"} & found


@BOTH
def test_dropout_that_drops_other_elements_is_told(reentrant: bool, marked: Run) -> None:
    def block(x: Tensor) -> Tensor:
        return functional.dropout(x.sin(), 0.5).exp()

    torch.manual_seed(1)
    x = torch.ones(3, 4, requires_grad=True)
    checkpoint(block, x, use_reentrant=reentrant).square().sum().backward()
    expected = torch.get_rng_state()
    torch.manual_seed(1)
    assert marked(block, use_reentrant=reentrant) == set()
    assert torch.equal(torch.get_rng_state(), expected)
    assert "Functional.dropout.0" in marked(block, use_reentrant=reentrant, preserve_rng_state=False)


@BOTH
def test_a_repetition_that_makes_other_calls_says_nothing(reentrant: bool, marked: Run) -> None:
    made: list[int] = []

    def block(x: Tensor) -> Tensor:
        made.append(1)
        return (x.cos().exp() if len(made) == 1 else (x * 1.1).exp().cos()).sin()

    assert marked(block, use_reentrant=reentrant) == set()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of those inside others
@pytest.mark.parametrize("kinds", [(True, True), (False, False), (True, False), (False, True)])
@pytest.mark.parametrize("call", [0, 1])
def test_in_nested_checkpoints(kinds: tuple[bool, bool], call: int, marked: Run) -> None:
    block = Block()

    def outer(x: Tensor) -> Tensor:
        return checkpoint(block, x.tan(), use_reentrant=kinds[1]).sinh().tanh()

    assert marked(outer, use_reentrant=kinds[0]) == set()
    found = marked(outer, Wrong("gelu", call), use_reentrant=kinds[0])
    assert {"Functional.gelu.0", "Functional.linear.1"} <= found
    assert not {"Functional.linear.0", "Tensor.sin.0", "Tensor.cos.0", "Tensor.tan.0"} & found


@BOTH
def test_what_is_written_in_place_is_compared(reentrant: bool, marked: Run) -> None:
    def block(x: Tensor) -> Tensor:
        made = x * 2
        filled = torch.zeros(3, 4)
        filled[:, :2] = functional.gelu(made)[:, :2]
        return filled.exp().sin()

    assert marked(block, use_reentrant=reentrant) == set()
    found = marked(block, Wrong("gelu", 1), use_reentrant=reentrant)
    assert {"Functional.gelu.0", "Tensor.exp.0"} <= found
    assert "Tensor.__mul__.0" not in found


@BOTH
def test_a_second_backward_pass_changes_nothing(reentrant: bool, make_debugger: Any, records: Any) -> None:
    x, block = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_(), Block()
    with make_debugger().collect():
        loss = checkpoint(block, x, use_reentrant=reentrant).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert not [name for name, record in records().items() if "recomputed" in record]


def test_a_fault_in_comparing_says_nothing(marked: Run, monkeypatch: pytest.MonkeyPatch, step_folder: Any) -> None:
    def fails(_: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setattr("msprobe_collector.pytorch.checkpoints.content_of", fails)
    assert marked(Block(), Wrong("gelu", 1), use_reentrant=False) == set()
    assert "planted" in (step_folder() / "dump_error_info.log").read_text()


@BOTH
def test_contents_on_a_device_are_read_once_per_repetition(
    reentrant: bool, marked: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    stack = torch.stack

    def counted(tensors: list[Tensor]) -> Tensor:
        if tensors[0].dtype is torch.bool and not tensors[0].ndim:  # statistics are stacked too
            reads.append(len(tensors))
        return stack(tensors)

    monkeypatch.setattr("msprobe_collector.pytorch.checkpoints.content_of", sum_of_bits)
    monkeypatch.setattr("msprobe_collector.pytorch.checkpoints.torch.stack", counted)
    assert "Functional.gelu.0" in marked(Block(), Wrong("gelu", 1), use_reentrant=reentrant)
    assert len(reads) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int64])
@pytest.mark.parametrize("size", [0, 1, 5000, 3 * 4096])
def test_a_sum_of_bits_tells_one_element(dtype: torch.dtype, size: int) -> None:
    tensor = (torch.arange(size) % 7).to(dtype)
    before = int(sum_of_bits(tensor))
    assert int(sum_of_bits(tensor.clone())) == before
    for at in {0, size - 1} if size else ():
        other = tensor.clone()
        other[at] = not other[at] if dtype is torch.bool else other[at] + 1
        assert int(sum_of_bits(other)) != before


def test_tensors_that_nobody_can_read_have_no_content() -> None:
    assert tensor_values.content_of(torch.empty(3, device="meta")) is None


def test_readers_know_the_mark(tmp_path: Path) -> None:
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1], "Max": 1, "Min": 1, "Mean": 1, "Norm": 1}
    marks: dict[str, Any] = {"0": MARK, "1": {"type": "str", "value": "other"}, "2": ["differs"], "3": None, "4": {}}
    data = {
        f"Torch.exp.{number}.backward": {"input": [tensor], "output": [tensor], "recomputed": mark}
        for number, mark in marks.items()
    }
    (tmp_path / "dump.json").write_text(json.dumps({"task": "statistics", "level": "L1", "data": data}))
    dump = Dump(tmp_path / "dump.json")
    for number in marks:
        record = dump.backward(f"Torch.exp.{number}")
        assert record is not None
        assert record.is_recomputed_otherwise is (number == "0")
        assert dump.is_recomputed_otherwise(f"Torch.exp.{number}.backward") is (number == "0")
