"""The MindSpore CPU computes in float64 what the page of coverage says it does."""

from __future__ import annotations

import numpy as np
import pytest
from torch_map_samples import Sample, as_call, read_samples

from pytest_msprobe.apis import facts
from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
from pytest_msprobe.engines.torch_bindings import NoCounterpart, lookup

SAMPLES = read_samples("mindspore_cpu_samples.txt")


@pytest.fixture(scope="module")
def engine() -> MindSporeEngine:
    pytest.importorskip("mindspore")
    return MindSporeEngine("CPU", is_raised=True)


def test_every_name_has_a_sample() -> None:
    assert list(facts("mindspore_cpu").typed()) == [f"{sample.api_type}.{sample.name}" for sample in SAMPLES]


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.text for sample in SAMPLES])
def test_it_runs_in_float64(sample: Sample, engine: MindSporeEngine) -> None:
    assert isinstance(lookup(sample.api_type, sample.name), NoCounterpart) or sample.api_type == "Tensor"
    call = as_call(sample)
    outputs = engine.forward(call, differentiate=()).outputs
    arrays = [output.value for output in outputs if isinstance(output.value, np.ndarray)]
    assert outputs
    assert all(array.dtype not in (np.float16, np.float32, np.complex64) for array in arrays)
