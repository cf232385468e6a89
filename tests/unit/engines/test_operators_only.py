"""What engines refuse before they call anything: names of no operator, strings, dicts, a method of nothing."""

from __future__ import annotations

import numpy as np
import pytest

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
from pytest_msprobe.engines.protocol import Argument, Call, Engine, Unsupported, plain_argument
from pytest_msprobe.engines.torch_engine import TorchEngine

X = np.full((2, 2), 0.5, np.float32)
UNKNOWN = {
    "mindspore": ["Mint.os.system", "MintFunctional.torch.os.system", "Functional.tensordump", "Tensor.offload"],
    "pytorch": ["Torch.os.system", "Torch.save", "Functional.torch.os.system", "Tensor.apply_", "Aten.from_file"],
}


def api_name(text: str) -> ApiName:
    api_type, _, name = text.partition(".")
    return ApiName(api_type, name, 0)


@pytest.fixture(params=["mindspore", "torch"])
def engine(request: pytest.FixtureRequest) -> Engine:
    pytest.importorskip(request.param)
    return MindSporeEngine(is_raised=False) if request.param == "mindspore" else TorchEngine(is_raised=False)


@pytest.mark.parametrize("name", UNKNOWN["mindspore"])
def test_a_name_of_no_table_is_refused_by_either_engine(engine: Engine, name: str) -> None:
    reason = engine.refusal(api_name(name), "mindspore")
    assert reason is not None
    assert f"{name}: not a known operator of mindspore." in reason
    with pytest.raises(Unsupported, match="not a known operator of"):
        engine.forward(Call(api_name(name), "mindspore", (X,), {}), differentiate=())


@pytest.mark.parametrize("name", UNKNOWN["pytorch"])
def test_a_name_of_no_table_of_pytorch_is_refused(name: str) -> None:
    reason = TorchEngine(is_raised=False).refusal(api_name(name), "pytorch")
    assert reason is not None
    assert "not a known operator of torch" in reason


@pytest.mark.parametrize("value", ["/etc/passwd", "mean", ("a",), {"f": 1}])
def test_arguments_that_an_operator_does_not_take_are_refused(engine: Engine, value: Argument) -> None:
    call = Call(ApiName("Mint", "exp", 0), "mindspore", (X,), {"f": value})
    with pytest.raises(Unsupported, match=r"kwargs\['f'\]"):
        engine.forward(call, differentiate=())


def test_a_method_needs_its_tensor() -> None:
    pytest.importorskip("mindspore")
    call = Call(ApiName("Tensor", "abs", 0), "mindspore", (3,), {})
    with pytest.raises(Unsupported, match="the tensor whose method it is was not recorded"):
        MindSporeEngine(is_raised=False).forward(call, differentiate=())


def test_values_are_passed_as_they_are() -> None:
    api = ApiName("Mint", "div", 0)
    for value in (1, 1.5, True, None, ..., slice(0, 2), "floor"):
        assert plain_argument(api, ("input", 1, 0), value) is value
