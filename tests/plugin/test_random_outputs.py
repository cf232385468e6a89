"""Random and uninitialised APIs in whole runs: recorded values of real samplers, a device, planted faults, reasons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(11)
X = RANDOM.standard_normal((64, 64)).astype(np.float32)
P = RANDOM.random((64, 64)).astype(np.float32)
CHANNELS = RANDOM.standard_normal((32, 16, 3, 3)).astype(np.float32)
KEPT = RANDOM.random((64, 64)) >= 0.1
DROPPED = np.where(KEPT, X / np.float32(0.9), np.float32(0))
G = RANDOM.standard_normal((64, 64)).astype(np.float32)


def run(pytester: pytest.Pytester, builder: DumpBuilder, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest(f"--msprobe-dump={builder.write()}", *arguments)


def test_mindspores_own_samplers_pass(pytester: pytest.Pytester) -> None:
    """Every random API that MindSpore has on a CPU but random_categorical, which draws the same for every row there."""
    import mindspore
    from mindspore import Tensor, ops

    mindspore.set_seed(3)
    one, three = Tensor(1.0, mindspore.float32), Tensor(3.0, mindspore.float32)
    calls: list[tuple[str, list[Any], Any]] = [
        ("Functional.bernoulli", [X, 0.3], ops.bernoulli(Tensor(X), 0.3)),
        ("Functional.bernoulli", [X, P], ops.bernoulli(Tensor(X), Tensor(P))),
        ("Functional.dropout", [X, 0.1], ops.dropout(Tensor(X), 0.1)),
        ("Functional.dropout2d", [CHANNELS, 0.3], ops.dropout2d(Tensor(CHANNELS), 0.3)),
        ("Functional.gumbel_softmax", [X], ops.gumbel_softmax(Tensor(X))),
        ("Functional.multinomial", [P, 5], ops.multinomial(Tensor(P), 5)),
        ("Functional.multinomial", [P, 5, False], ops.multinomial(Tensor(P), 5, False)),
        ("Functional.normal", [[64, 64], 0.0, 2.0], ops.normal((64, 64), 0.0, 2.0)),
        ("Functional.rand", [64, 64], ops.rand(64, 64)),
        ("Functional.randint", [0, 9, [64, 64]], ops.randint(0, 9, (64, 64))),
        ("Functional.randn_like", [X], ops.randn_like(Tensor(X))),
        ("Functional.randperm", [500], ops.randperm(500)),
        ("Functional.rrelu", [X], ops.rrelu(Tensor(X))),
        ("Functional.shuffle", [X], ops.shuffle(Tensor(X))),
        ("Functional.standard_laplace", [[64, 64]], ops.standard_laplace((64, 64))),
        (
            "Functional.uniform",
            [[64, 64], np.array(1, np.float32), np.array(3, np.float32)],
            ops.uniform((64, 64), one, three),
        ),
        ("Tensor.cauchy", [X], Tensor(X).cauchy()),
        ("Tensor.log_normal", [X], Tensor(X).log_normal()),
        ("Primitive.drop.Dropout", [X], ops.Dropout(0.7)(Tensor(X))),
        ("Primitive.drop.Dropout2D", [CHANNELS], ops.Dropout2D(0.7)(Tensor(CHANNELS))),
        ("Primitive.random.UniformReal", [[64, 64]], ops.UniformReal()((64, 64))),
        ("Primitive.random.TruncatedNormal", [[64, 64]], ops.TruncatedNormal()(Tensor([64, 64], mindspore.int32))),
        ("Mint.empty", [3, 4], mindspore.mint.empty(3, 4)),
    ]
    builder = DumpBuilder(pytester.path)
    for number, (name, arguments, returned) in enumerate(calls):
        outputs = returned if isinstance(returned, tuple) else (returned,)
        builder.call(f"{name}.{number}", arguments, [output.asnumpy() for output in outputs])
    run(pytester, builder).assert_outcomes(passed=len(calls))


def test_a_device_runs_the_api_and_is_judged_by_its_law(pytester: pytest.Pytester, reports: Reports) -> None:
    builder = DumpBuilder(pytester.path, real=False)
    builder.call("Functional.dropout.0", [X, 0.1], [X], incoming=[G], gradients=[G])
    builder.call("Functional.randn.0", [64, 64], [X])
    builder.call("Functional.randn.1", [64, 32], [X])
    result = run(pytester, builder, "--msprobe-device=mindspore:cpu")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*Tested shape (64, 32), but the dump recorded (64, 64).*"])
    row = reports.details["Functional.dropout.0.forward.output.0"]
    assert (row["Status"], row["Tested Dtype"], row["Shape"], row["Cosine"]) == ("pass", "Float32", "(64, 64)", "")


ERRORS: dict[str, tuple[str, list[Any], list[Any], str]] = {
    "wrong probability": ("MintFunctional.dropout.0", [X, 0.4], [DROPPED], "neither 0 nor 1.66667 times the input"),
    "wrong share": (
        "MintFunctional.dropout.0",
        [X, 0.1],
        [np.where(RANDOM.random(X.shape) < 0.8, X / np.float32(0.9), 0).astype(np.float32)],
        "were kept, where the law expects about 3686.4",
    ),
    "channels in part": (
        "Functional.dropout2d.0",
        [CHANNELS, 0.1],
        [CHANNELS * (CHANNELS > -1) / np.float32(0.9)],
        "is dropped in part",
    ),
    "bernoulli": ("Mint.bernoulli.0", [P], [(P > 0.5).astype(np.float32)], "are 1, where the law expects"),
    "normal": ("Mint.randn.0", [64, 64], [X * np.float32(1.3)], "standard units"),
    "range": ("Mint.rand.0", [64, 64], [P - np.float32(0.5)], "outside uniform(0, 1)"),
    "shape": ("Mint.rand.0", [64, 32], [P], "Tested shape (64, 64), but the arguments ask for (64, 32)"),
    "dtype": ("Mint.randint.0", [0, 9, [8]], [np.zeros(8, np.int32)], "Tested dtype Int32, but the arguments ask for"),
    "permutation": ("Mint.randperm.0", [8], [np.zeros(8, np.int64)], "not a permutation of 0..7"),
    "without replacement": ("Mint.multinomial.0", [P[0], 2], [np.array([3, 3])], "occurs twice"),
    "mask": ("Primitive.d.Dropout.0", [X], [DROPPED, np.ones_like(X)], "not what the output shows"),
    "uninitialised shape": ("Mint.empty.0", [3], [np.zeros(4, np.float32)], "Tested shape (4,)"),
    "uninitialised dtype": ("Mint.empty_like.0", [X], [np.zeros(X.shape, np.float16)], "Tested dtype Float16"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_planted_faults_are_errors_that_say_what(pytester: pytest.Pytester, reports: Reports, case: str) -> None:
    name, arguments, outputs, text = ERRORS[case]
    result = run(pytester, DumpBuilder(pytester.path).call(name, arguments, outputs))
    result.assert_outcomes(failed=1)
    assert text in result.stdout.str()
    assert text in reports.results[name]["Message"]


SKIPS: dict[str, tuple[str, list[Any], list[Any], str]] = {
    "dropout that the collector switched off": ("MintFunctional.dropout.0", [X, 0.1], [X], "switched off"),
    "no law": ("Functional.gamma.0", [[64], X, X], [X], "random by nature: the gamma law"),
    "arguments that are not law": ("Tensor.random_.0", [X], [X], "not documented for floats"),
    "arguments that do not bind": ("Mint.rand_like.0", [], [X], "missing a required argument"),
    "no tensor": ("Mint.rand.0", [1], [0.5], "not all tensors"),
}


@pytest.mark.parametrize("case", SKIPS)
def test_what_cannot_be_tested_is_a_skip_with_its_reason(pytester: pytest.Pytester, case: str) -> None:
    name, arguments, outputs, text = SKIPS[case]
    result = run(pytester, DumpBuilder(pytester.path).call(name, arguments, outputs), "-rs")
    result.assert_outcomes(skipped=1)
    assert text in result.stdout.str()


def test_passes_say_what_they_could_not_judge(pytester: pytest.Pytester, reports: Reports) -> None:
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.rand.0", [4], [P[0, :4].copy()])
    builder.call("Mint.empty_like.0", [X], [X])
    run(pytester, builder).assert_outcomes(passed=2)
    assert "4 elements are too few to test uniform(0, 1)" in reports.results["Mint.rand.0"]["Message"]
    assert "uninitialised: judged by dtype and shape only" in reports.results["Mint.empty_like.0"]["Message"]
    assert "uninitialised" in reports.details["Mint.empty_like.0.forward.output.0"]["Message"]


def test_the_gradient_of_a_dropout_follows_its_recorded_output(pytester: pytest.Pytester, reports: Reports) -> None:
    gradient = np.where(KEPT, G / np.float32(0.9), np.float32(0))
    builder = DumpBuilder(pytester.path)
    builder.call("MintFunctional.dropout.0", [X, 0.1], [DROPPED], incoming=[G], gradients=[gradient])
    builder.call("MintFunctional.dropout.1", [X, 0.1], [DROPPED], incoming=[G], gradients=[G])
    builder.call("MintFunctional.dropout.2", [X, 0.1], [X], incoming=[G], gradients=[G])
    builder.call("Functional.rrelu.0", [np.abs(X)], [np.abs(X)], incoming=[G], gradients=[G])
    result = run(pytester, builder, "-rs")
    # The last two forwards: switched off, and nothing negative; the last backward has no law.
    result.assert_outcomes(passed=5, failed=1, skipped=2)
    details = {name: row["Status"] for name, row in reports.details.items() if "backward.output" in name}
    assert details == {
        "MintFunctional.dropout.0.backward.output.0": "pass",
        "MintFunctional.dropout.1.backward.output.0": "error",
        "MintFunctional.dropout.2.backward.output.0": "pass",
    }
    result.stdout.fnmatch_lines(["*the gradient depends on what the forward drew*"])


def test_pytorch_runs_and_is_judged_by_the_pytorch_table(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path, real=False, framework="pytorch")
    builder.call("Torch.randn.0", [64, 64], [X])
    builder.call("Torch.randperm.0", [500], [np.arange(500)])
    builder.call("Functional.dropout.0", [X, 0.1], [X], incoming=[G], gradients=[G])
    builder.call("Tensor.exponential_.0", [X, 2.0], [X])
    builder.call("Tensor.bernoulli_.0", [X, 0.25], [X])
    builder.call("Torch.empty_like.0", [X], [X])
    run(pytester, builder, "--msprobe-device=torch:cpu").assert_outcomes(passed=7)


def test_a_failing_law_can_be_saved(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path)
    builder.call("MintFunctional.dropout.0", [X, 0.1], [DROPPED], incoming=[G], gradients=[G])
    builder.call("Mint.rand.0", [64, 64], [X])
    result = run(pytester, builder, "--msprobe-error-data=auto", "--msprobe-reproducers=scripts")
    result.assert_outcomes(passed=1, failed=2)
    assert (pytester.path / "error_data").is_dir() or list(pytester.path.glob("**/*Mint.rand.0*"))


def test_other_names_of_torchs_samplers_pass(pytester: pytest.Pytester) -> None:
    import torch

    torch.manual_seed(3)
    calls: list[tuple[str, list[Any], Any]] = [
        ("Torch.dropout_", [X, 0.1, True], torch.dropout_(torch.tensor(X), 0.1, True)),
        ("Torch.feature_dropout", [CHANNELS, 0.3, True], torch.feature_dropout(torch.tensor(CHANNELS), 0.3, True)),
        ("Torch.rrelu", [X], torch.rrelu(torch.tensor(X))),
        ("Torch.rrelu_", [X, 0.1, 0.3, True], torch.rrelu_(torch.tensor(X), 0.1, 0.3, True)),
        ("Tensor.normal_", [X, 0.5, 0.0], torch.zeros(64, 64).normal_(0.5, 0.0)),
        ("Tensor.uniform_", [X, 2.0, 2.0], torch.zeros(64, 64).uniform_(2.0, 2.0)),
    ]
    builder = DumpBuilder(pytester.path, framework="pytorch")
    for number, (api, arguments, output) in enumerate(calls):
        builder.call(f"{api}.{number}", arguments, [output.numpy()])
    builder.call("Tensor.normal_.6", [X, 0.5, 0.0], [np.where(KEPT, np.float32(0.5), np.float32(0.6))])
    run(pytester, builder).assert_outcomes(passed=len(calls), failed=1)
