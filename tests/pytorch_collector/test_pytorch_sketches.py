"""Sketches that PyTorch computes where a tensor is, here on the CPU, are those of the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from msprobe_collector.dump_format.sketches import Sketch, distance, row_of
from msprobe_collector.dump_format.writing.statistics import row_from_device, statistics_of
from msprobe_collector.pytorch import device
from msprobe_collector.pytorch.device import sketch_on_device
from msprobe_collector.pytorch.tensor_values import torch_values

Shape = tuple[int, ...]


def assert_same(tensor: torch.Tensor) -> None:
    array = torch_values().read(tensor).array
    above = int(np.count_nonzero(array == np.inf))
    mine = row_from_device(sketch_on_device(tensor).numpy(), statistics_of(array), above)
    wanted = row_of(array)
    assert mine is not None
    assert mine.not_finite == wanted.not_finite
    found = distance(Sketch.of_row(mine, tensor.shape), Sketch.of_row(wanted, tensor.shape))
    assert found.value <= found.resolution


@pytest.mark.parametrize("shape", [(), (1,), (5, 7), (8, 33, 40), (2, 3, 4, 5), (1 << 17,), (70001 * 2,), (3000, 500)])
def test_shapes(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_SKETCHED_AT_ONCE", 1 << 12)
    device._arithmetic.cache_clear()
    assert_same(torch.randn(shape))
    device._arithmetic.cache_clear()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int32, torch.int64, torch.bool]
)
def test_dtypes(dtype: Any) -> None:
    assert_same((torch.randn(20, 30) * 5).to(dtype))


def test_complex_conjugated_and_transposed_tensors() -> None:
    values = torch.randn(6, 10, dtype=torch.complex64)
    for tensor in (values, values.conj(), values.mT, values.conj().imag, torch.randn(4, 5, 6).permute(2, 0, 1)):
        assert_same(tensor)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_magnitudes(scale: float) -> None:
    assert_same(torch.randn(20, 30, dtype=torch.float64) * scale)


def test_elements_that_are_not_finite() -> None:
    tensor = torch.randn(4, 50)
    tensor[0, :3], tensor[1, 0], tensor[2, 5:9] = torch.nan, torch.inf, -torch.inf
    assert_same(tensor)
    assert_same(torch.full((3, 3), torch.nan))
    assert_same(torch.zeros(3, 3))


def test_autocast_changes_nothing() -> None:
    tensor = torch.randn(64, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(tensor)


def test_masks_of_the_largest_number_have_sketches_and_numbers_without_digits_have_none() -> None:
    assert_same(torch.full((70, 70), torch.finfo(torch.float32).min).triu(1))
    assert_same(torch.full((70, 70), 1e-27))
    tiny = torch.full((70, 70), 1e-35)
    assert row_from_device(sketch_on_device(tiny).numpy(), statistics_of(tiny.numpy()), 0) is None


def test_one_value_is_sketched_once_and_a_changed_one_again(make_debugger: Any, records: Any) -> None:
    x = torch.randn(8, 8)
    with make_debugger(summary_mode="sketch").collect():
        torch.exp(x)
        torch.exp(x)
        x.data.copy_(x.T.clone())  # no version tells of it
        torch.exp(x)
        x.add_(1)
        torch.exp(x)
    found = [records()[f"Torch.exp.{number}.forward"]["input_args"][0]["sketch"] for number in range(4)]
    assert found[0] == found[1]
    assert len(set(found)) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_one_number_in_every_place_has_a_content(dtype: Any) -> None:
    """So is the gradient that a sum gives back."""
    one = torch.ones(1, dtype=dtype).expand(4, 6)
    contents = [torch_values().read(tensor).content() for tensor in (one, one.clone() * 2)]
    assert None not in contents
    assert contents[0] != contents[1]
