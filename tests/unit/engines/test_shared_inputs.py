"""What one engine does to its inputs does not reach another: all of them get the same arrays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder
from fakes.checking import Bench
from fakes.engine import FakeEngine, FakeEngines

from msprobe_collector.dump_format import Dump, parse_api_name
from pytest_msprobe.cases.case import read_case, read_incoming
from pytest_msprobe.cases.inputs import InputSource
from pytest_msprobe.engines.protocol import Call, Engine, Unsupported

X = np.linspace(0.5, 2.0, 6, dtype=np.float32).reshape(2, 3)
Y = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
IN_PLACE: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Tensor.add_", [X, Y], {}),
    ("Tensor.mul_", [X, Y], {}),
    ("Tensor.exp_", [X], {}),
    ("Tensor.zero_", [X], {}),
    ("Tensor.copy_", [X, Y], {}),
    ("Tensor.clamp_", [X], {"min": 0.75}),
    ("Tensor.index_add_", [X, 0, np.array([1, 0]), Y], {}),
    ("Mint.nn.functional.relu_", [Y], {}),
    ("Functional.relu_", [Y], {}),
]


class Writer(FakeEngine):
    """Writes to what it was given before it computes."""

    def forward(self, call: Call, **more: Any) -> Any:
        call.arguments[0][...] = 0  # type: ignore[index,call-overload]  # an array
        return super().forward(call, **more)


class Late(FakeEngine):
    """Writes to the incoming gradients."""

    def forward(self, call: Call, **more: Any) -> Any:
        execution = super().forward(call, **more)
        gradients = execution.differentiate

        def spoiled(incoming: Any) -> Any:
            incoming[0][...] = 0
            return gradients(incoming)

        execution.differentiate = spoiled
        return execution


@pytest.mark.parametrize(
    ("engines", "direction", "side"),
    [
        (FakeEngines(Writer()), "forward", "device (fake CPU)"),
        (FakeEngines(FakeEngine(), (Writer("bench", is_raised=True),)), "forward", "benchmark (bench CPU float64)"),
        (FakeEngines(Late()), "backward", "device (fake CPU)"),
    ],
)
def test_an_engine_that_writes_to_its_inputs_fails_by_itself(
    tmp_path: Path, engines: FakeEngines, direction: Any, side: str
) -> None:
    found = Bench(tmp_path, engines=engines).verdict(direction)
    assert found.status == "error"
    assert found.message == f"{side}: ValueError: assignment destination is read-only"


@pytest.mark.parametrize("name", ["torch", "torch float64", "mindspore", "mindspore, large", "child"])
def test_operators_that_write_in_place_get_copies(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "mindspore, large":
        name = "mindspore"
        monkeypatch.setattr("pytest_msprobe.engines.mindspore_engine._LENT_BYTES", 0)
    engine = engine_called(name)
    ran = 0
    try:
        for number, (api, arguments, keywords) in enumerate(IN_PLACE):
            framework = "pytorch" if api == "Functional.relu_" else "mindspore"
            builder = DumpBuilder(tmp_path / str(number), framework=framework)
            builder.call(f"{api}.0", arguments, [X], keywords=keywords, incoming=[Y], gradients=[Y])
            dump = Dump(builder.write())
            source = InputSource(str(dump.path), dump.tensors, 0)
            case = read_case(dump, f"{api}.0", source, with_backward=True, max_memory_bytes=1 << 30)
            incoming = read_incoming(case, source)
            try:
                execution = engine.forward(case.call, differentiate=case.wanted)
                ran += 1
                execution.gradients(incoming)
            except Unsupported:
                pass
            for given, left in zip([*arguments, Y], [*case.call.arguments, *incoming], strict=True):
                assert np.array_equal(given, left), (api, left)  # type: ignore[arg-type]  # arrays and numbers
    finally:
        engine.close()
    assert ran >= 4


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_mindspore_uses_the_memory_of_one_copy_of_a_large_array(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_called("mindspore")
    lent = []
    mindspore = engine._mindspore  # type: ignore[attr-defined]
    monkeypatch.setattr(mindspore.Tensor, "from_numpy", recording(mindspore.Tensor.from_numpy, lent))
    large, small = (np.ones(shape, dtype) for shape in ((1 << 10, 1 << 10), (2, 3)))
    for array in (large, small):
        array.flags.writeable = False
        outputs = engine.forward(
            Call(parse_api_name("Mint.add.0"), "mindspore", (array, array), {}), differentiate=()
        ).outputs
        assert outputs[0].value.dtype == dtype  # type: ignore[union-attr]  # an array
        assert np.array_equal(outputs[0].value, array + array)  # type: ignore[arg-type]
    # from_numpy knows no bfloat16
    assert [array.shape for array in lent] == ([] if dtype is ml_dtypes.bfloat16 else [large.shape] * 2)
    assert not any(np.shares_memory(array, large) for array in lent)


#: In a process of its own: after a call whose gradients it refuses, MindSpore itself keeps more than it needs.
_GRADIENTS = """
import gc, weakref
import numpy as np
from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
from pytest_msprobe.engines.protocol import Call

gc.disable()
engine = MindSporeEngine(is_raised=False)
tensors, lent = engine._mindspore.Tensor, []
from_numpy = tensors.from_numpy
tensors.from_numpy = lambda array: lent.append(weakref.ref(array)) or from_numpy(array)
array = np.ones((1 << 10, 1 << 10), np.float32)
call = Call(parse_api_name("MintFunctional.silu.0"), "mindspore", (array,), {})
execution = engine.forward(call, differentiate=(("input", 0),))
gradients = execution.gradients((array,))
assert [copy() is None for copy in lent] == [True, True], lent
try:
    execution.gradients((array,))
except RuntimeError as error:
    assert "computed once" in str(error)
"""


def test_mindspore_has_let_go_of_its_copies_when_the_benchmark_computes_gradients() -> None:
    if find_spec("mindspore") is None:
        pytest.skip("needs mindspore")
    subprocess.run([sys.executable, "-c", _GRADIENTS], check=True)


def recording(function: Callable[[Any], Any], seen: list[Any]) -> Callable[[Any], Any]:
    def record(value: Any) -> Any:
        seen.append(value)
        return function(value)

    return record


def engine_called(name: str) -> Engine:
    if name == "mindspore":
        pytest.importorskip("mindspore")
        from pytest_msprobe.engines.mindspore_engine import MindSporeEngine

        return MindSporeEngine(is_raised=False)
    pytest.importorskip("torch")
    from pytest_msprobe.engines.child import ChildEngine
    from pytest_msprobe.engines.torch_engine import TorchEngine

    engine = TorchEngine(is_raised=name != "torch")
    return ChildEngine(engine) if name == "child" else engine
