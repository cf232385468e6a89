"""Every sample call through both engines: outputs and gradients agree, spelled by position and spelled by keyword."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from torch_map_samples import Refused, Sample, as_call, compare_each, in_groups, mindspore_api, read_samples

from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
from pytest_msprobe.engines.protocol import Call, Execution, LeafPath, Unsupported, map_leaves
from pytest_msprobe.engines.torch_engine import TorchEngine

SAMPLES = read_samples()
SPELLED = [sample for sample in SAMPLES if sample.args and sample.api_type in ("Mint", "MintFunctional", "Functional")]
DEVIATIONS = dict(
    line.split(" | ")
    for line in Path(__file__).with_name("torch_map_deviations.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


@pytest.fixture(scope="module")
def torch_engine() -> TorchEngine:
    pytest.importorskip("torch")
    return TorchEngine(is_raised=True)


@pytest.fixture(scope="module")
def mindspore_engine(mindspore: ModuleType) -> MindSporeEngine:
    return MindSporeEngine("CPU", is_raised=False)


@pytest.fixture(scope="module")
def mindspore() -> ModuleType:
    module: ModuleType = pytest.importorskip("mindspore")
    return module


def test_deviations_name_samples() -> None:
    assert set(DEVIATIONS) <= {sample.text for sample in SAMPLES}


def _compare_gradients(samples: list[Sample], torch_engine: TorchEngine, mindspore_engine: MindSporeEngine) -> None:
    def compare(sample: Sample) -> None:
        call = as_call(sample)
        wanted = _float_leaves(call)
        if not wanted:
            return
        tested = _tested(mindspore_engine, call, wanted)
        expected = torch_engine.forward(call, differentiate=wanted)
        incoming = tuple(_incoming(output.value) for output in tested.outputs if len(output.path) == 1)
        theirs, ours = _gradients(tested, incoming, "MindSpore CPU"), _gradients(expected, incoming, "PyTorch")
        for path, actual, right in zip(wanted, theirs, ours, strict=True):
            np.testing.assert_allclose(actual, right, rtol=1e-3, atol=1e-3, err_msg=str(path))

    compare_each(samples, "gradients", compare, DEVIATIONS)


@pytest.mark.filterwarnings("ignore")
@in_groups(SAMPLES)
def test_gradients_agree(samples: list[Sample], torch_engine: TorchEngine, mindspore_engine: MindSporeEngine) -> None:
    _compare_gradients(samples, torch_engine, mindspore_engine)


def test_a_counterpart_that_loses_its_gradient_fails(
    torch_engine: TorchEngine, mindspore_engine: MindSporeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    samples = [sample for sample in SAMPLES if sample.text in ("Mint.cosh(X)", "Mint.sinh(X)")]
    monkeypatch.setattr(torch, "sinh", lambda x: x.detach().sinh())
    with pytest.raises(AssertionError, match=r"\AMint\.sinh\(X\): not compared, .* has no gradient[^\n]*\Z"):
        _compare_gradients(samples, torch_engine, mindspore_engine)


@pytest.mark.filterwarnings("ignore")
@in_groups(SPELLED)
def test_keywords_mean_the_same(samples: list[Sample], torch_engine: TorchEngine, mindspore: ModuleType) -> None:
    """Arguments spelled by MindSpore's own parameter names give what they give by position."""

    def compare(sample: Sample) -> None:
        names = _parameter_names(mindspore, sample)
        if len(names) < len(sample.args):
            raise Refused("MindSpore does not show its parameters")
        by_position = torch_engine.forward(as_call(sample), differentiate=())
        spelled = {**dict(zip(names, sample.args)), **sample.kwargs}
        by_keyword = torch_engine.forward(as_call(sample, (), spelled), differentiate=())
        for one, other in zip(by_position.outputs, by_keyword.outputs, strict=True):
            np.testing.assert_allclose(one.value, other.value, rtol=1e-12)

    compare_each(samples, "names", compare)


def _float_leaves(call: Call) -> tuple[LeafPath, ...]:
    found: list[LeafPath] = []
    map_leaves(
        call,
        lambda path, value: found.append(path) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else None,
    )
    return tuple(found)


def _tested(engine: MindSporeEngine, call: Call, wanted: tuple[LeafPath, ...]) -> Execution:
    try:
        return engine.forward(call, differentiate=wanted)
    except Unsupported as error:
        raise Refused(str(error)) from None
    except (RuntimeError, TypeError, ValueError) as error:
        # An API without a float output cannot be differentiated; what the call itself does wrong fails in
        # test_torch_map_values.py.
        raise Refused(f"MindSpore CPU cannot differentiate it: {str(error).splitlines()[0][:100]}") from None


def _gradients(execution: Execution, incoming: tuple[Any, ...], side: str) -> tuple[Any, ...]:
    try:
        return execution.gradients(incoming)
    except Unsupported as error:
        raise Refused(f"{side}: {error}") from None
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        text = str(error).splitlines()[0]
        if side == "PyTorch" and not ("derivative" in text or "not differentiable" in text):
            raise
        raise Refused(f"{side} has no gradient: {text[:100]}") from None


def _incoming(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fc":
        return None
    return np.random.Generator(np.random.PCG64(3)).standard_normal(value.shape).astype(value.dtype)


def _parameter_names(mindspore: ModuleType, sample: Sample) -> list[str]:
    try:
        signature = inspect.signature(mindspore_api(mindspore, sample.api_type, sample.name, **(sample.given or {})))
    except (TypeError, ValueError):
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(signature.parameters.values())
    return [] if any(item.kind in variable for item in parameters) else [item.name for item in parameters]
