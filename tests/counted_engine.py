"""The float64 benchmark, counting how often it runs."""

from __future__ import annotations

from typing import Any

from pytest_msprobe.engines.torch_engine import TorchEngine


class CountedEngine(TorchEngine):
    """A benchmark that counts its forwards."""

    def __init__(self) -> None:
        super().__init__(is_raised=True)
        self.forwards = 0

    def forward(self, call: Any, *, differentiate: Any) -> Any:
        self.forwards += 1
        return super().forward(call, differentiate=differentiate)
