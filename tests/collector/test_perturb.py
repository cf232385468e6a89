"""debugger.perturb on tensors, batches and Cells of MindSpore."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from collector.small_gpt import Training
from mindspore import Tensor

from msprobe_collector import DebuggerError, PrecisionDebugger


@pytest.mark.parametrize("dtype", [ms.float16, ms.float32, ms.float64, ms.bfloat16])
def test_a_tensor_keeps_dtype_and_moves_by_one_ulp(make_debugger, dtype):
    tensor = Tensor(np.full((3, 4), 1.5), dtype)
    moved = make_debugger().perturb(tensor)
    assert (moved.dtype, moved.shape) == (dtype, (3, 4))
    # Bits as whole numbers: 1.5 is not at a power of two, so that both neighbours are one apart.
    size = {ms.float16: np.int16, ms.float32: np.int32, ms.float64: np.int64, ms.bfloat16: np.int16}[dtype]
    steps = moved.asnumpy().view(size) - tensor.asnumpy().view(size)
    assert set(np.abs(steps).reshape(-1).tolist()) == {1}
    assert float(tensor.astype(ms.float64).max()) == 1.5


def test_a_batch_of_whole_numbers_is_left_and_said(make_debugger, caplog):
    batch = {"ids": Tensor([1, 2]), "mask": Tensor([True, False])}
    moved = make_debugger().perturb(batch)
    assert moved["ids"] is batch["ids"]
    assert "perturb() found no floating numbers to move; give it the Cell" in caplog.text


def test_a_cell_moves_its_parameters_in_place_the_same_ones_every_time(make_debugger):
    def values() -> list[np.ndarray]:
        training = Training()
        before = [parameter.asnumpy().copy() for parameter in training.net.get_parameters()]
        PrecisionDebugger._the_one = None
        assert make_debugger().perturb(training.net) is training.net
        after = [parameter.asnumpy().copy() for parameter in training.net.get_parameters()]
        assert any((one != other).any() for one, other in zip(before, after))
        np.testing.assert_array_max_ulp(
            np.concatenate([a.ravel() for a in after]), np.concatenate([b.ravel() for b in before]), 1
        )
        assert len(training.step()) > 1, "it trains on"
        return after

    assert all((one == other).all() for one, other in zip(values(), values()))


@pytest.mark.parametrize("arguments", [{"roundings": 0}, {"roundings": True}, {"seed": -1}, {"roundings": 1.5}])
def test_what_is_no_number_of_roundings_is_refused(make_debugger, arguments):
    with pytest.raises(DebuggerError, match="perturb\\(\\): "):
        make_debugger().perturb(Tensor([1.0]), **arguments)
