"""The engines themselves: real PyTorch, real MindSpore, real child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
import torch
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import ApiName, find_dtype
from pytest_msprobe.engines.child import ChildEngine, ChildError
from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
from pytest_msprobe.engines.protocol import Argument, Call, Engine, Unsupported
from pytest_msprobe.engines.torch_engine import TorchEngine

X = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)
Y = np.array([[2.0, 1.0], [1.0, -1.0]], np.float32)
G = np.array([[1.0, 0.0], [2.0, -1.0]], np.float32)
LEAVES = (("input", 0), ("input", 1))


def call(name: str, *arguments: Argument, **keywords: Argument) -> Call:
    api_type, _, api = name.partition(".")
    return Call(ApiName(api_type, api, 0), "mindspore", arguments, keywords)


@pytest.fixture(scope="module")
def child_of_mindspore() -> Iterator[ChildEngine]:
    engine = ChildEngine(MindSporeEngine(is_raised=True))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def child_of_torch() -> Iterator[ChildEngine]:
    engine = ChildEngine(TorchEngine(is_raised=True))
    yield engine
    engine.close()


@pytest.fixture(params=["torch", "child_of_torch", "mindspore", "child_of_mindspore"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param.startswith("child"):
        child: ChildEngine = request.getfixturevalue(request.param)
        return child
    return TorchEngine(is_raised=True) if request.param == "torch" else MindSporeEngine(is_raised=True)


def test_matmul_and_its_gradients_in_float64(engine: Engine) -> None:
    execution = engine.forward(call("Mint.matmul", X, Y), differentiate=LEAVES)
    (output,) = execution.outputs
    assert output.path == (0,)
    np.testing.assert_array_equal(output.value, X.astype(np.float64) @ Y)
    left, right = execution.gradients((G,))
    assert (left.dtype, right.dtype) == (np.float64, np.float64)
    np.testing.assert_array_equal(left, G @ Y.T)
    np.testing.assert_array_equal(right, X.T @ G)


def test_only_the_asked_leaves_are_differentiated_in_the_asked_order(engine: Engine) -> None:
    execution = engine.forward(call("Mint.mul", X, Y), differentiate=(("input", 1),))
    (gradient,) = execution.gradients((np.ones_like(X),))
    np.testing.assert_array_equal(gradient, X)
    execution = engine.forward(call("Mint.mul", X, Y), differentiate=tuple(reversed(LEAVES)))
    np.testing.assert_array_equal(execution.gradients((np.ones_like(X),)), [X, Y])


def test_list_and_keyword_tensors_are_differentiated(engine: Engine) -> None:
    execution = engine.forward(call("Mint.cat", (X, Y), dim=1), differentiate=(("input", 0, 1), ("input", 0, 0)))
    second, first = execution.gradients((np.concatenate([X, G], axis=1),))
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, G)


def test_several_outputs_and_an_unused_one(engine: Engine) -> None:
    execution = engine.forward(call("Mint.chunk", X, 2, 1), differentiate=(("input", 0),))
    assert [output.path for output in execution.outputs] == [(0,), (1,)]
    (gradient,) = execution.gradients((None, G[:, :1]))
    np.testing.assert_array_equal(gradient, [[0, 1], [0, 2]])


def test_index_outputs_carry_no_gradient(engine: Engine) -> None:
    execution = engine.forward(call("Mint.max", X, 1), differentiate=(("input", 0),))
    assert [np.asarray(output.value).tolist() for output in execution.outputs] == [[1.0, 3.0], [0, 1]]
    (gradient,) = execution.gradients((np.array([5.0, 7.0], np.float32), None))
    np.testing.assert_array_equal(gradient, [[5, 0], [0, 7]])


def test_inputs_are_never_written_to(engine: Engine) -> None:
    frozen = X.copy()
    frozen.flags.writeable = False
    execution = engine.forward(call("Tensor.add_", frozen, Y), differentiate=LEAVES)
    np.testing.assert_array_equal(execution.outputs[0].value, X + Y)
    np.testing.assert_array_equal(frozen, X)


def test_a_dtype_argument_is_raised_except_in_a_cast(engine: Engine) -> None:
    big = np.array([2.0**25, 1.0, 1.0], np.float32)
    (total,) = engine.forward(call("Mint.sum", big, dtype=find_dtype("Float32")), differentiate=()).outputs
    assert total.value.tolist() == 2.0**25 + 2
    (cast,) = engine.forward(call("Tensor.to", X, find_dtype("Float16")), differentiate=()).outputs
    assert cast.value.dtype == np.float16


def test_a_kernel_that_leaves_flush_to_zero_on_spoils_nothing_after_it() -> None:
    tiny = np.array([5e-324])
    import mindspore

    mindspore.ops.cosine_similarity(mindspore.Tensor(X), mindspore.Tensor(Y)).asnumpy()
    if (tiny * 1.0)[0] != 0.0:
        pytest.skip("this MindSpore no longer does it")
    MindSporeEngine(is_raised=False).forward(call("Functional.cosine_similarity", X, Y), differentiate=())
    assert (tiny * 1.0)[0] == 5e-324
    (doubled,) = TorchEngine(is_raised=True).forward(call("Mint.add", tiny, tiny), differentiate=()).outputs
    assert doubled.value.tolist() == [1e-323]


def test_bfloat16_comes_in_exactly(engine: Engine) -> None:
    small = np.array([1.0, 1.0078125], ml_dtypes.bfloat16)
    (output,) = engine.forward(call("Mint.mul", small, small), differentiate=()).outputs
    assert output.value.tolist() == [1.0, 1.0078125**2]


def test_what_an_engine_lacks_is_unsupported(engine: Engine) -> None:
    with pytest.raises(Unsupported, match="no_such_api"):
        engine.forward(call("Mint.no_such_api", X), differentiate=())


def test_an_error_of_the_api_is_no_missing_kernel(engine: Engine) -> None:
    with pytest.raises((RuntimeError, ValueError)) as caught:
        engine.forward(call("Mint.matmul", X, np.ones((5, 5), np.float32)), differentiate=())
    assert not isinstance(caught.value, Unsupported)


def test_a_gradient_of_the_wrong_shape_is_refused(engine: Engine) -> None:
    execution = engine.forward(call("Mint.exp", X), differentiate=(("input", 0),))
    with pytest.raises((ValueError, ChildError), match="incoming gradient"):
        execution.gradients((np.ones(3, np.float32),))


def test_a_kernel_that_only_the_gradient_lacks_is_unsupported() -> None:
    empty = np.zeros((0, 3, 3), np.float16)
    call = Call(ApiName("Tensor", "cholesky", 0), "mindspore", (empty,), {})
    execution = TorchEngine(is_raised=False).forward(call, differentiate=(("input", 0),))
    with pytest.raises(Unsupported, match=r"no gradient: .*not implemented for 'Half'"):
        execution.gradients((empty,))


def test_a_missing_mindspore_kernel_is_named() -> None:
    with pytest.raises(Unsupported, match=r"MindSpore CPU has no kernel \w+"):
        MindSporeEngine(is_raised=True).forward(call("Mint.stack", (X, Y)), differentiate=())
    with pytest.raises(Unsupported, match=r"MindSpore CPU has no kernel \w+ for this dtype"):
        MindSporeEngine(is_raised=False).forward(call("Mint.exp", X.astype(ml_dtypes.bfloat16)), differentiate=())


#: MindSpore that runs asynchronously, its default: an error comes late, and twice.
_ASYNCHRONOUS = """
import mindspore, numpy as np
from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
from pytest_msprobe.engines.protocol import Call, Unsupported

mindspore.runtime.launch_blocking = lambda: None
engine, x = MindSporeEngine(is_raised=False), np.ones((2, 2), np.float32)
raised = 0
for _ in range(300):
    try:
        engine.forward(Call(ApiName("Mint", "stack", 0), "mindspore", ((x, x),), {}), differentiate=())
    except Unsupported:
        raised += 1
    engine.forward(Call(ApiName("Mint", "add", 0), "mindspore", (x, x), {}), differentiate=())
print("raised", raised)
"""


@pytest.mark.slow
def test_an_error_that_mindspore_raises_twice_stays_with_its_call() -> None:
    done = subprocess.run([sys.executable, "-c", _ASYNCHRONOUS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "raised 300"


def test_the_device_computes_in_the_dumps_dtype() -> None:
    for engine in (TorchEngine(is_raised=False), MindSporeEngine(is_raised=False)):
        for dtype in (np.float16, np.float32):
            execution = engine.forward(call("Mint.matmul", X.astype(dtype), Y.astype(dtype)), differentiate=LEAVES)
            assert execution.outputs[0].value.dtype == dtype
            assert [gradient.dtype for gradient in execution.gradients((G.astype(dtype),))] == [dtype, dtype]
    bfloat16 = X.astype(ml_dtypes.bfloat16)
    (output,) = TorchEngine(is_raised=False).forward(call("Mint.exp", bfloat16), differentiate=()).outputs
    assert output.value.dtype == ml_dtypes.bfloat16


def test_outputs_and_gradients_are_of_one_draw_where_mindspore_lost_its_graph() -> None:
    from mindspore.common import api

    ones = np.ones((64, 64), np.float32)
    execution = MindSporeEngine(is_raised=False).forward(
        call("Functional.dropout", ones, 0.5), differentiate=(("input", 0),)
    )
    api._pynative_executor.clear_res()
    (gradient,) = execution.gradients((ones,))
    np.testing.assert_array_equal(gradient, execution.outputs[0].value)


@pytest.mark.parametrize("framework", ["torch", "mindspore"])
def test_the_forward_runs_once_for_both_directions(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import mindspore

    module = torch if framework == "torch" else mindspore.mint
    original, runs = module.matmul, []
    monkeypatch.setattr(module, "matmul", lambda *given, **named: runs.append(1) or original(*given, **named))
    engine: Engine = TorchEngine(is_raised=True) if framework == "torch" else MindSporeEngine(is_raised=True)
    execution = engine.forward(call("Mint.matmul", X, Y), differentiate=LEAVES)
    execution.gradients((G,))
    assert len(runs) == 1


def test_a_child_that_dies_is_an_error_of_its_call_only() -> None:
    engine = ChildEngine(TorchEngine(is_raised=True))
    engine.forward(call("Mint.exp", X), differentiate=())
    assert engine._process is not None
    os.kill(engine._process.pid, signal.SIGKILL)
    with pytest.raises(ChildError, match="died with signal 9"):
        engine.forward(call("Mint.exp", X), differentiate=())
    (output,) = engine.forward(call("Mint.exp", X), differentiate=()).outputs
    np.testing.assert_allclose(output.value, np.exp(X.astype(np.float64)))
    engine.close()


def test_what_a_framework_prints_does_not_reach_the_pipe(child_of_mindspore: ChildEngine) -> None:
    for _ in range(3):
        child_of_mindspore.forward(call("Mint.exp", X), differentiate=())


def test_an_interpreter_without_the_packages_says_what_it_needs() -> None:
    engine = ChildEngine(TorchEngine(is_raised=True), python="/bin/false")
    with pytest.raises(ChildError, match="that Python needs numpy, msgspec and ml_dtypes beside torch"):
        engine.forward(call("Mint.exp", X), differentiate=())


def test_primitives_run_when_they_have_no_attributes() -> None:
    engine = MindSporeEngine(is_raised=True)
    (output,) = engine.forward(call("Primitive.attribute.Add", X, Y), differentiate=()).outputs
    np.testing.assert_array_equal(output.value, X + Y)
    with pytest.raises(Unsupported, match=r"MatMul: constructor attributes \(transpose_a, transpose_b\) are not in"):
        engine.forward(call("Primitive.attribute.MatMul", X, Y), differentiate=())


@pytest.mark.slow
def test_bfloat16_of_mindspore_is_bfloat16(pytester: pytest.Pytester) -> None:
    ones = np.ones((2, 2), np.float32)
    builder = DumpBuilder(pytester.path, real=False).call(
        "Tensor.bfloat16.0", [ones], [ones.astype(ml_dtypes.bfloat16)]
    )
    builder.write()
    result = pytester.runpytest_inprocess(f"--msprobe-dump={builder.path}", "--msprobe-device=mindspore:cpu")
    result.assert_outcomes(passed=1)
