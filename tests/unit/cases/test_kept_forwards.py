"""Which forwards of an API call stay in memory, and so how often one runs."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest
from counted_engine import CountedEngine
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import Dump, parse_api_name
from pytest_msprobe.cases.call_run import OUTPUTS, CallRun
from pytest_msprobe.engines.protocol import Call
from pytest_msprobe.engines.torch_engine import TorchEngine


def forwards(folder: Path, elements: int, variant: str) -> tuple[int, list[np.ndarray]]:
    """(forwards that ran, outputs) where the same outputs are asked for twice."""
    pytest.importorskip("torch")
    array = np.linspace(-1, 1, elements, dtype=np.float32)
    path = DumpBuilder(folder).call("Mint.exp.0", [array], [np.exp(array)]).write()
    run = CallRun(Dump(path), "Mint.exp.0", with_backward=False, max_memory_bytes=1 << 30)
    engine = CountedEngine()
    outputs = [run.ask(engine, OUTPUTS, variant=variant) for _ in range(2)]
    return engine.forwards, [found[0].value for found in outputs]


@pytest.mark.parametrize(
    ("elements", "variant", "ran"),
    [(8, "", 1), (8, "moved", 1), (1 << 20, "", 1), (1 << 20, "moved", 2)],
    ids=["small", "variant of a small one", "large", "variant of a large one"],
)
def test_the_forward_of_a_large_variant_is_not_kept(tmp_path: Path, elements: int, variant: str, ran: int) -> None:
    count, (first, second) = forwards(tmp_path, elements, variant)
    assert count == ran
    np.testing.assert_array_equal(first, second)


def test_the_benchmark_lets_go_of_inputs_and_graph_with_the_gradients() -> None:
    pytest.importorskip("torch")
    arrays = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    places = (("input", 0), ("input", 1))
    call = Call(parse_api_name("Mint.matmul.0"), "mindspore", arrays, {})
    execution = TorchEngine(is_raised=True).forward(call, differentiate=places)
    held = [weakref.ref(tensor) for tensor in (*execution._leaves, *execution._tensors)]
    incoming = (np.ones((2, 4)),)
    first, second = execution.gradients(incoming)
    assert [tensor() for tensor in held] == [None, None, None]
    np.testing.assert_array_equal(first, incoming[0] @ arrays[1].T)
    np.testing.assert_array_equal(second, arrays[0].T @ incoming[0])
    np.testing.assert_array_equal(execution.outputs[0].value, arrays[0] @ arrays[1])
    with pytest.raises(RuntimeError, match="once"):
        execution.gradients(incoming)
