"""debugger.perturb on tensors, batches and layers."""

from __future__ import annotations

import numpy as np
import pytest

from msprobe_collector import DebuggerError


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_a_tensor_keeps_dtype_and_moves_by_one_ulp(framework, make_debugger, dtype):
    tensor = framework.tensor(np.full((3, 4), 1.5), dtype)
    moved = make_debugger().perturb(tensor)
    assert (moved.dtype, moved.shape) == (tensor.dtype, (3, 4))
    # Bits as whole numbers: 1.5 is not at a power of two, so that both neighbours are one apart.
    after, before = framework.array(moved), framework.array(tensor)
    steps = after.view(f"i{after.itemsize}") - before.view(f"i{after.itemsize}")
    assert set(np.abs(steps).reshape(-1).tolist()) == {1}
    assert float(before.astype(float).max()) == 1.5


def test_a_batch_of_whole_numbers_is_left_and_said(framework, make_debugger, caplog):
    batch = {"ids": framework.tensor([1, 2], "int64"), "mask": framework.tensor([True, False], framework.boolean)}
    moved = make_debugger().perturb(batch)
    assert moved["ids"] is batch["ids"]
    assert f"perturb() found no floating numbers to move; give it the {framework.layer}" in caplog.text


def test_a_layer_moves_its_parameters_in_place_the_same_ones_every_time(framework, make_debugger):
    def values() -> list[np.ndarray]:
        training = framework.make_training()
        before = [framework.array(parameter) for parameter in framework.parameters(training.net)]
        assert make_debugger().perturb(training.net) is training.net
        after = [framework.array(parameter) for parameter in framework.parameters(training.net)]
        assert any((one != other).any() for one, other in zip(before, after))
        np.testing.assert_array_max_ulp(
            np.concatenate([a.ravel() for a in after]), np.concatenate([b.ravel() for b in before]), 1
        )
        assert len(training.step()) > 1, "it trains on"
        return after

    assert all((one == other).all() for one, other in zip(values(), values()))


@pytest.mark.parametrize("arguments", [{"roundings": 0}, {"roundings": True}, {"seed": -1}, {"roundings": 1.5}])
def test_what_is_no_number_of_roundings_is_refused(framework, make_debugger, arguments):
    with pytest.raises(DebuggerError, match="perturb\\(\\): "):
        make_debugger().perturb(framework.tensor([1.0]), **arguments)
