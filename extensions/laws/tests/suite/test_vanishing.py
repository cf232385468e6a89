"""Where gradients become 0, in dumps of one step of a small model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from msprobe_collector.dump_format import Dump
from msprobe_laws.suite.backwards import Vanishing


class Net(nn.Module):
    """A part is used as the test says, between two layers that are trained."""

    def __init__(self, use: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.use = use
        self.first, self.part, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.zero = nn.Linear(8, 8, bias=False)
        nn.init.zeros_(self.zero.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        return self.last(hidden + self.use(self, hidden))


@pytest.mark.parametrize(
    ("use", "ends"),
    [
        (lambda net, hidden: net.zero(net.part(hidden)), []),  # a weight that is not trained yet
        (lambda net, hidden: net.part(hidden) * 0, []),
        (lambda net, hidden: net.part(hidden) * torch.zeros(12, 1), []),
        (lambda net, hidden: net.part(hidden * 0), []),
        (lambda net, hidden: hidden.index_add(0, torch.tensor([], dtype=torch.long), net.part(hidden[:0])), []),
        (lambda net, hidden: net.part(hidden)[:, :1].softmax(-1), ["Tensor.softmax.0"]),
        (lambda net, hidden: (net.part(hidden) - 100).relu(), ["Tensor.relu.0"]),
        (lambda net, hidden: net.part(hidden), None),
        (lambda net, hidden: hidden, None),
    ],
)
def test_a_gradient_becomes_zero_at_a_zero_or_without_one(
    use: Any, ends: Sequence[str] | None, make_debugger: Any, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    net = Net(use)
    debugger = make_debugger(level="mix", task="statistics", common={"step": [0]})
    debugger.start(net)
    functional.cross_entropy(net(torch.randn(12, 6)), torch.randint(5, (12,))).backward()  # type: ignore[no-untyped-call]
    debugger.stop()
    debugger.step()
    (path,) = tmp_path.rglob("dump.json")
    found = Vanishing(Dump(path)).unexplained("part.bias" if ends is None else "part.weight")
    assert found == ends
