"""How often the benchmark runs under `backward-error`: what rounding of the output explains costs no further run."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder

torch_engine = pytest.importorskip("pytest_msprobe.engines.torch_engine")
pytest.importorskip("torch")

TENSORS = Path(__file__).parents[1] / "dumps" / "gpt_tiny_tensor" / "step0" / "proc0"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Forwards of the float64 benchmark in runs of this process: with inputs `as recorded`, `moved`, moved `inside`."""
    counted: Counter[str] = Counter()
    forward = torch_engine.TorchEngine.forward

    def counting(self: Any, call: Any, **options: Any) -> Any:
        kind = "inside" if call.arithmetic_roundoff else "moved" if call.saved_roundoff else "as recorded"
        counted[kind] += 1
        return forward(self, call, **options)

    monkeypatch.setattr(torch_engine.TorchEngine, "forward", counting)
    return counted


def test_a_training_step_takes_fewer_than_one_and_a_half_forwards_a_call(
    pytester: pytest.Pytester, runs: Counter[str]
) -> None:
    result = pytester.runpytest_inprocess(f"--msprobe-dump={TENSORS}", "--msprobe-standard=backward-error")
    result.assert_outcomes(passed=180)
    assert runs["inside"] == 0
    # Runs on squares are counted among those as recorded.
    assert runs["as recorded"] >= 90
    assert runs.total() <= 1.5 * 90


def test_what_is_rounded_once_takes_one_forward(pytester: pytest.Pytester, runs: Counter[str]) -> None:
    x = np.linspace(-3, 3, 4096, dtype=np.float32)
    right = np.tanh(x.astype(np.float64))
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.tanh.0", [x], [right.astype(np.float32)])
    builder.call("Mint.tanh.1", [x], [np.nextafter(right.astype(np.float32), np.float32(9))])
    builder.write()
    result = pytester.runpytest_inprocess("--msprobe-dump=dump.json", "--msprobe-standard=backward-error")
    result.assert_outcomes(passed=2)
    assert runs == {"as recorded": 2}


def test_what_inputs_do_not_explain_takes_two_runs_of_each_kind_and_four_probes(
    pytester: pytest.Pytester, runs: Counter[str]
) -> None:
    x = np.linspace(-6, -5, 4096, dtype=np.float32)
    half, root = np.float32(0.5), np.float32(np.sqrt(0.5))
    erf = np.vectorize(math.erf)
    textbook = half * x * (np.float32(1) + erf((x * root).astype(np.float64)).astype(np.float32))
    builder = DumpBuilder(pytester.path)
    builder.call("MintFunctional.gelu.0", [x], [textbook])
    builder.write()
    result = pytester.runpytest_inprocess("--msprobe-dump=dump.json", "--msprobe-standard=backward-error")
    result.assert_outcomes(passed=1)
    assert runs == {"as recorded": 1, "moved": 2 + 4, "inside": 2 + 4}
