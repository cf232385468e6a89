"""How much the collector does for a record, counted in calls of functions: times say more about the machine."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(nn.functional.gelu(self.linear(x)))


def calls_of_a_step(model: nn.Module, x: torch.Tensor) -> int:
    """Calls of Python's and C's functions in a forward and a backward."""
    events = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        model(x).sum().backward()
    finally:
        sys.setprofile(None)
    return sum(event in ("call", "c_call") for event in events)


@pytest.mark.parametrize(("level", "most"), [("L0", 230), ("L1", 290), ("mix", 270)])
def test_few_functions_are_called_for_a_record(level, most, make_debugger, records):
    model = nn.Sequential(*(Layers() for _ in range(8)))
    x = torch.randn(8, 8)
    bare = calls_of_a_step(model, x)
    debugger = make_debugger(level=level)
    for _ in range(2):  # in the second one what is made once is there
        with debugger.collect(model):
            calls = calls_of_a_step(model, x)
    count = len(records(1))
    assert (calls - bare) / count < most
