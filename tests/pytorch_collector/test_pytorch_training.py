"""A training is bit-identical with the collector and without, whatever it does."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import troubles
from slow_parameters import slow

_MODES = {
    "L0": {"level": "L0"},
    "L1": {"level": "L1"},
    "mix": {"level": "mix"},
    "tensor": {"level": "mix", "task": "tensor"},
    "md5": {"level": "mix", "summary_mode": "md5"},
    "sketch": {"level": "mix", "summary_mode": "sketch"},
    "structure": {"level": "mix", "task": "structure"},
    "asynchronous": {"level": "mix", "task": "tensor", "common": {"async_dump": True}},
}
#: Those that a run of folders has.
_QUICK = ("mix", "tensor")


def outcome(name: str, collect: troubles.Collect) -> tuple[list[Any], Any]:
    """(everything that the training yields, state of the generator afterwards)."""
    torch.manual_seed(5)
    torch.use_deterministic_algorithms(True)
    try:
        return list(troubles.TRAININGS[name](collect)), torch.get_rng_state()
    finally:
        torch.use_deterministic_algorithms(False)


@functools.cache
def outcome_without(name: str) -> tuple[list[Any], Any]:
    return outcome(name, lambda model: nullcontext())


def assert_same_bits(one: Any, other: Any) -> None:
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other):
            assert_same_bits(left, right)
    elif one is None:
        assert other is None
    else:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.detach().numpy().tobytes() == other.detach().numpy().tobytes()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("mode", [*_QUICK, *slow(*(mode for mode in _MODES if mode not in _QUICK))])
@pytest.mark.parametrize("name", troubles.TRAININGS)
def test_training_is_bit_identical(name: str, mode: str, make_debugger, tmp_path: Path) -> None:
    plain = outcome_without(name)
    debugger = make_debugger(**_MODES[mode])

    @contextmanager
    def collect(model: Any) -> Iterator[None]:
        with debugger.collect(model):
            yield

    assert_same_bits(outcome(name, collect), plain)
    logs = list(tmp_path.glob("dump/**/dump_error_info.log"))
    faults = "".join(log.read_text() for log in logs)
    assert "Call stack" not in faults, faults
    if mode != "structure":
        assert any(b'"data"' in file.read_bytes() for file in tmp_path.glob("dump/**/dump.json"))
