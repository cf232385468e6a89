"""The device torch:npu and the functions of torch_npu, with a stand-in: nothing here has run on an NPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

pytestmark = pytest.mark.machine_kernels

FAKE = Path(__file__).parents[1] / "fakes" / "npu"
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
GAMMA = np.ones(4, np.float32)


def dump(folder: Path, *, real: bool) -> DumpBuilder:
    rstd = 1 / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-6)
    half = X[:, :2] / (1 + np.exp(-X[:, :2])) * X[:, 2:]
    builder = DumpBuilder(folder, real=real, framework="pytorch")
    builder.call("NPU.npu_rms_norm.0", [X, GAMMA], [X * rstd, rstd])
    builder.call("NPU.npu_swiglu.0", [X], [half], keywords={"dim": -1})
    builder.call("NPU.npu_fusion_attention.0", [X[None], X[None], X[None], 1, "BSH"], [X[None], None])
    builder.call("NPU.npu_no_such_function.0", [X], [X])
    builder.call("Torch.mul.0", [X, X], [X * X])
    return builder


def test_optimizers_orders_and_shapes_of_torch_npu(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path, framework="pytorch")
    m, v = (0.2 * X).astype(np.float32), (0.05 * X * X).astype(np.float32)
    adam = X - np.float32(0.1) * m / (np.sqrt(v) + np.float32(1e-8)) * np.float32(0.05**0.5 / 0.2)
    decayed = X * np.float32(0.99) - np.float32(0.1) * m / np.float32(0.2) / (np.sqrt(v / np.float32(0.05)) + 1e-8)
    zeros = [X, np.zeros_like(X), np.zeros_like(X)]
    scalars = [0.1, 0.8, 0.95, 1e-8]
    builder.call("NPU.npu_apply_adam.0", [0.8, 0.95, *scalars, X, False, False], [adam, m, v], keywords={"out": zeros})
    builder.call(
        "NPU.npu_apply_adam_w.0",
        [1.0, 1.0, 0.1, 0.1, *scalars[1:], X, None, False, False],
        [decayed.astype(np.float32), m, v],
        keywords=dict(zip(("var", "m", "v"), zeros)),
    )
    builder.call("NPU.npu_sort_v2.0", [X], [X[:, ::-1]], keywords={"descending": True})
    turned = X.reshape(2, 2, 2).transpose(0, 2, 1)
    builder.call("NPU.npu_confusion_transpose.0", [X, [0, 2, 1], [2, 2, 2], False], [turned])
    builder.call(
        "NPU.npu_confusion_transpose.1",
        [X, [1, 0], [2, 4], True],
        [X.T.reshape(2, 4)],
        incoming=[X],
        gradients=[X.reshape(4, 2).T],
    )
    builder.call("NPU.npu_sort_v2.1", [X], [X[:, ::-1]])  # recorded wrong
    builder.write()
    result = run(pytester)
    result.assert_outcomes(passed=6, failed=1)


@pytest.fixture
def with_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "2,3")


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--msprobe-dump=dump.json", "-rs", *options)


def test_recorded_values_of_torch_npu_are_judged_against_references(pytester: pytest.Pytester) -> None:
    dump(pytester.path, real=True).write()
    result = run(pytester)
    result.assert_outcomes(passed=3, failed=1, skipped=1)  # the attention was recorded wrong
    result.stdout.fnmatch_lines(["*NPU.npu_no_such_function: no reference is known*"])


@pytest.mark.slow
@pytest.mark.usefixtures("with_npu")
@pytest.mark.parametrize("options", [("--msprobe-device=torch:npu",), ("--msprobe-device=torch:npu:1",), ("-n2",)])
def test_functions_of_torch_npu_run_on_the_device(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    dump(pytester.path, real=False).write()
    given = options if "npu" in options[0] else ("--msprobe-device=torch:npu", *options)
    result = run(pytester, *given)
    result.assert_outcomes(passed=2, failed=1, skipped=2)
    text = result.stdout.str()
    assert "NPU.npu_swiglu" in text.partition("\nWrong: ")[2].partition("\n")[0]
    assert "the installed torch_npu has no npu_fusion_attention" in text
    assert "tested: torch NPU" in text


@pytest.mark.usefixtures("with_npu")
@pytest.mark.parametrize(
    ("uses", "options", "reason"),
    [
        ("0", (), "torch_npu finds no NPU"),
        ("1", ("-n1",), "torch NPU in the dump dtypes (device 2): no call can run on it: the NPU is lost"),
        ("2", ("--msprobe-diagnosis=answer.json",), "no call can run on it: the NPU is lost"),
    ],
)
def test_a_device_that_computes_nothing_ends_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, uses: str, options: tuple[str, ...], reason: str
) -> None:
    monkeypatch.setenv("NPU_LOST_AFTER", uses)
    builder = DumpBuilder(pytester.path, framework="pytorch")
    for number in range(20):
        builder.call(f"Torch.neg.{number}", [X], [-X])
    builder.write()
    result = run(pytester, "--msprobe-device=torch:npu", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "failed" not in result.parseoutcomes()
    assert reason in result.stdout.str() + result.stderr.str()
    if uses == "2":
        result.assert_outcomes(passed=1)
        answer = json.loads((pytester.path / "answer.json").read_text(encoding="utf-8"))
        assert [gap["kind"] for gap in answer["open"][:2]] == ["refused", "unfinished"]
        assert answer["open"][1]["count"] == 19


def test_mindspore_without_ascend_ends_the_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mindspore")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0")
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.neg.0", [X], [-X]).call("Mint.neg.1", [X], [-X]).write()
    result = run(pytester, "--msprobe-device=mindspore:ascend")
    assert (result.ret, result.parseoutcomes()) == (pytest.ExitCode.USAGE_ERROR, {})
    result.stdout.fnmatch_lines(["*mindspore Ascend in the dump dtypes: no call can run on it: *"])


@pytest.mark.parametrize("device", ["torch:npu", "mindspore:ascend", "mindspore:ascend:3"])
def test_a_machine_without_npu_says_so_before_the_run(pytester: pytest.Pytester, device: str) -> None:
    dump(pytester.path, real=False).write()
    result = run(pytester, f"--msprobe-device={device}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--msprobe-device={device}: this machine has no Ascend NPU*"])


def test_a_missing_torch_npu_is_said_before_the_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "2")
    dump(pytester.path, real=False).write()
    result = run(pytester, "--msprobe-device=torch:npu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*torch_npu is not installed; it must be the release for the installed PyTorch*"])


def npu_gaps(folder: Path) -> None:
    """Calls with recorded outputs as the functions of torch_npu give them; one output of npu_min is wrong."""
    builder = DumpBuilder(folder, real=True, framework="pytorch")
    mask = np.arange(8).reshape(2, 4) % 3 == 0
    parts = np.where(mask, 0, np.exp(X * 0.5))
    softmax = (parts / parts.sum(-1, keepdims=True)).astype(np.float32)
    builder.call("NPU.npu_scaled_masked_softmax.0", [X, mask, 0.5, False], [softmax])
    builder.call("NPU.npu_max.0", [X, 1], [X.max(1), X.argmax(1).astype(np.int32)])
    builder.call("NPU.npu_min.0", [X, 1], [X.max(1), X.argmin(1).astype(np.int32)])
    weight, rows = np.full((1, 4), 0.5, np.float32), np.ones(2, np.float32)
    other, gate = X[:, :2] * 0.5, X[:, 2:] * 0.5
    product = gate / (1 + np.exp(-gate)) * other
    scale = np.abs(product).max(-1) / 127
    values = np.round(product / scale[:, None]).astype(np.int8)
    keywords = {"weight_scale": weight[0], "activation_scale": rows, "quant_mode": 1}
    builder.call("NPU.npu_dequant_swiglu_quant.0", [X], [values, scale.astype(np.float32)], keywords=keywords)
    builder.write()


def test_recorded_values_of_more_functions(pytester: pytest.Pytester) -> None:
    npu_gaps(pytester.path)
    result = run(pytester)
    result.assert_outcomes(passed=3, failed=1)
    assert "NPU.npu_min" in result.stdout.str().partition("\nWrong: ")[2].partition("\n")[0]


@pytest.mark.usefixtures("with_npu")
def test_more_functions_run_on_the_device(pytester: pytest.Pytester) -> None:
    npu_gaps(pytester.path)
    result = run(pytester, "--msprobe-device=torch:npu")
    result.assert_outcomes(passed=3, failed=1)
    assert "NPU.npu_min" in result.stdout.str().partition("\nWrong: ")[2].partition("\n")[0]


@pytest.mark.parametrize(("real", "way"), [(True, "--msprobe-device=recorded"), (False, '"task": "tensor"')])
def test_what_the_training_computed_is_another_question_than_a_device(
    pytester: pytest.Pytester, real: bool, way: str
) -> None:
    builder = DumpBuilder(pytester.path, real=real, framework="pytorch")
    builder.call("Torch.neg.0", [X], [-X]).write()
    result = run(pytester, "--msprobe-device=torch:cpu")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["not judged: what the training computed was not judged: tested was torch CPU*"])
    result.stdout.fnmatch_lines([f"next: *{way}*"])
