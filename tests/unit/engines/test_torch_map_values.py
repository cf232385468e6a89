"""Every sample call computes the same in MindSpore (float32) and in its PyTorch counterpart (float64)."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from torch_map_samples import Dtype, Parameter, Refused, Sample, compare_each, in_groups, mindspore_api, read_samples

from pytest_msprobe.engines.mindspore_engine import discard_left_errors
from pytest_msprobe.engines.torch_bindings import Binding, lookup

# How the MindSpore CPU says that it has no kernel, or none for a dtype.
NO_KERNEL = re.compile(
    r"kernel \w+ unregistered|Select CPU operator\[|Unsupported op \[|Not implement exception|only supports? Ascend"
    r"|support Ascend only|is not supported on this device|Create kernelmod for op|Not found op \w+ on device CPU"
    r"|should not come here for|KernelMod Init Failed|does not support this kernel data type"
    r"|'Registry' object has no attribute"
)


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def mindspore() -> ModuleType:
    module: ModuleType = pytest.importorskip("mindspore")
    module.runtime.launch_blocking()
    return module


@pytest.fixture(scope="module")
def roots(torch: ModuleType) -> dict[str, object]:
    from pytest_msprobe.engines import adapters

    return {"torch": torch, "adapters": adapters}


@pytest.mark.filterwarnings("error")
@in_groups(read_samples())
def test_both_frameworks_agree(
    samples: list[Sample], mindspore: ModuleType, torch: ModuleType, roots: dict[str, object]
) -> None:
    def compare(sample: Sample) -> None:
        found = lookup(sample.api_type, sample.name)
        assert isinstance(found, Binding)
        args, kwargs = _to_torch(torch, (sample.args, sample.kwargs))
        expected = _leaves(found.bound(args, kwargs, roots, _to_torch(torch, sample.attributes))())
        actual = _leaves(_computed(mindspore, sample))
        assert len(actual) == len(expected)
        for ours, theirs in zip(expected, actual, strict=True):
            if ours is None:  # left open
                continue
            if isinstance(theirs, np.ndarray):
                np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)
                assert theirs.shape == np.shape(ours)
            else:
                assert theirs == ours

    compare_each(samples, "values", compare)


def _computed(mindspore: ModuleType, sample: Sample) -> Any:
    discard_left_errors(mindspore)  # errors of earlier calls may come late, and are no answer of this one
    args, kwargs = _to_mindspore(mindspore, (sample.args, sample.kwargs))
    try:
        computed = mindspore_api(mindspore, sample.api_type, sample.name, **(sample.given or {}))(*args, **kwargs)
        _leaves(computed)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
        reason = NO_KERNEL.search(str(error))
        if reason is None:
            raise
        raise Refused(reason.group()) from None
    return computed


def _to_torch(torch: ModuleType, value: Any) -> Any:
    def leaf(item: Any) -> Any:
        if isinstance(item, Dtype):
            return getattr(torch, item.name)
        array = item.array if isinstance(item, Parameter) else item
        tensor = torch.from_numpy(np.array(array))
        return tensor.double() if tensor.is_floating_point() else tensor

    return _map(value, leaf)


def _to_mindspore(mindspore: ModuleType, value: Any) -> Any:
    def leaf(item: Any) -> Any:
        if isinstance(item, Dtype):
            return getattr(mindspore, item.name)
        if isinstance(item, Parameter):
            return mindspore.Parameter(mindspore.Tensor(item.array))
        return mindspore.Tensor(np.array(item))

    return _map(value, leaf)


def _map(value: Any, leaf: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_map(item, leaf) for item in value)
    if isinstance(value, dict):
        return {key: _map(item, leaf) for key, item in value.items()}
    return leaf(value) if isinstance(value, (np.ndarray, np.generic, Dtype, Parameter)) else value


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _leaves(item)]
    if hasattr(value, "asnumpy"):
        return [value.asnumpy()]
    if hasattr(value, "resolve_conj"):
        return [value.detach().resolve_conj().numpy()]
    return [value]
