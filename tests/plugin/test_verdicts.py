"""Each planted fault and what becomes of it: recorded values against the real PyTorch benchmark."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

from msprobe_collector.dump_format import FieldPath, TensorFolder, TensorValue

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(7)
A = RANDOM.standard_normal((4, 8)).astype(np.float32)
B = RANDOM.standard_normal((8, 5)).astype(np.float32)
G = RANDOM.standard_normal((4, 5)).astype(np.float32)
EXACT = (A.astype(np.float64) @ B.astype(np.float64)).astype(np.float32)
GRADIENTS = [(G.astype(np.float64) @ B.T).astype(np.float32), (A.T @ G.astype(np.float64)).astype(np.float32)]


def run(pytester: pytest.Pytester, builder: DumpBuilder, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest(f"--msprobe-dump={builder.write()}", *arguments)


def changed(array: Array, change: Callable[[Array], None]) -> Array:
    copy = array.copy()
    change(copy)
    return copy


def put(index: Any, value: float) -> Callable[[Array], None]:
    def change(array: Array) -> None:
        array[index] = value

    return change


FAULTS = {
    "one element off": (changed(EXACT, put((2, 3), 50.0)), "at [2, 3] (tested 50.0, benchmark"),
    "bias": (EXACT + np.float32(0.01), "20 of 20 elements (100 %) off by 0.0001 or more"),
    "sign": (-EXACT, "Cosine -1 is not above 0.99"),
    "tail not written": (changed(EXACT, put(slice(3, None), 0.0)), "at [3,"),
    "nothing written": (np.zeros_like(EXACT), "Cosine 0 is not above 0.99"),
    "swapped elements": (EXACT[::-1], "is not above 0.99"),
    "NaN": (changed(EXACT, put((0, 1), np.nan)), "has a NaN or Inf that the other side lacks, first at [0, 1]"),
    "Inf": (changed(EXACT, put((3, 4), np.inf)), "first at [3, 4] (tested inf"),
    "wrong shape": (EXACT.T, "(5, 4)"),
    "wrong dtype class": (EXACT.astype(np.int32), "int"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_an_error_that_says_where(pytester: pytest.Pytester, reports: Reports, fault: str) -> None:
    output, text = FAULTS[fault]
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.matmul.0", [A, B], [output], incoming=[G], gradients=GRADIENTS)
    result = run(pytester, builder)
    result.assert_outcomes(failed=1, passed=1)
    assert text in result.stdout.str()
    row = reports.results["Mint.matmul.0"]
    assert (row["Forward Test Success"], row["Backward Test Success"]) == ("error", "pass")
    assert reports.details["Mint.matmul.0.forward.output.0"]["Status"] == "error"
    assert row["Message"].startswith("forward: output.0: ")


def test_a_right_call_passes_in_both_directions(pytester: pytest.Pytester, reports: Reports) -> None:
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.matmul.0", [A, B], [EXACT], incoming=[G], gradients=GRADIENTS)
    run(pytester, builder).assert_outcomes(passed=2)
    assert [row["Bench Dtype"] for row in reports.details.values()] == ["Float64"] * 3


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_gradient_is_named_by_its_position(pytester: pytest.Pytester, reports: Reports, wrong: int) -> None:
    gradients = [gradient * np.float32(1.05 if index == wrong else 1) for index, gradient in enumerate(GRADIENTS)]
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.matmul.0", [A, B], [EXACT], incoming=[G], gradients=gradients)
    run(pytester, builder).assert_outcomes(failed=1, passed=1)
    statuses = {name[-1]: row["Status"] for name, row in reports.details.items() if ".backward." in name}
    assert statuses == {str(wrong): "error", str(1 - wrong): "pass"}


def test_a_null_gradient_keeps_its_place(pytester: pytest.Pytester, reports: Reports) -> None:
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.matmul.0", [A, B], [EXACT], incoming=[G], gradients=[None, GRADIENTS[1]])
    run(pytester, builder).assert_outcomes(passed=2)
    assert [name for name in reports.details if "backward" in name] == ["Mint.matmul.0.backward.output.1"]


def test_primitive_gradients_in_firing_order_are_paired_by_shape(pytester: pytest.Pytester) -> None:
    weight, bias = RANDOM.standard_normal((5, 8)).astype(np.float32), np.zeros(5, np.float32)
    output = (A.astype(np.float64) @ weight.T).astype(np.float32)
    gradients = [(G.T @ A).astype(np.float32), G.sum(0), (G @ weight).astype(np.float32)]
    builder = DumpBuilder(pytester.path)
    builder.call("Primitive.dense.Dense.0", [A, weight, bias], [output], incoming=[G], gradients=gradients)
    builder.call(
        "Primitive.dense.Dense.1", [A, weight, bias], [output], incoming=[G], gradients=[g * 2 for g in gradients]
    )
    result = run(pytester, builder)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["FAILED *Primitive.dense.Dense.1::backward*"])


def test_primitive_gradients_of_one_shape_are_told_apart_by_value(pytester: pytest.Pytester) -> None:
    x, y = np.full((3, 3), 2, np.float32), np.full((3, 3), 5, np.float32)
    ones = np.ones((3, 3), np.float32)
    builder = DumpBuilder(pytester.path)
    builder.call("Primitive.mul.Mul.0", [x, y], [x * y], incoming=[ones], gradients=[x, y])
    builder.call("Primitive.mul.Mul.1", [x, y], [x * y], incoming=[ones], gradients=[x, ones])
    result = run(pytester, builder)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["FAILED *Mul.1::backward*"])


NAN = np.array([1, np.nan, np.inf, -np.inf, 0], np.float32)
PASSES = {
    "equal NaN and Inf": ("Mint.neg.0", [NAN], [-NAN]),
    "both all zero": ("Mint.neg.0", [np.zeros(3, np.float32)], [np.zeros(3, np.float32)]),
    "empty": ("Mint.neg.0", [np.zeros((0, 3), np.float32)], [np.zeros((0, 3), np.float32)]),
    "0-d": ("Mint.exp.0", [np.array(0.5, np.float32)], [np.array(np.exp(0.5), np.float32)]),
    "bool": ("Mint.gt.0", [A, 0.0], [A > 0]),
    "int beyond 2**53": ("Mint.add.0", [np.array([2**60]), np.array([1])], [np.array([2**60 + 1])]),
    "bfloat16 rounded once": (
        "Mint.matmul.0",
        [A.astype(ml_dtypes.bfloat16), B.astype(ml_dtypes.bfloat16)],
        [
            (A.astype(ml_dtypes.bfloat16).astype(np.float64) @ B.astype(ml_dtypes.bfloat16).astype(np.float64))
            .astype(np.float32)
            .astype(ml_dtypes.bfloat16)
        ],
    ),
    "Python int": ("Tensor.numel.0", [A], [32]),
    "Python bool": ("Tensor.is_floating_point.0", [A], [True]),
    "Python float": ("Tensor.item.0", [np.array(12345.678, np.float32)], [float(np.float32(12345.678))]),
    "four-part name": ("Mint.linalg.inv.0", [np.diag([2.0, 4.0])], [np.diag([0.5, 0.25])]),
    "list argument": ("Mint.cat.0", [[A, A], 0], [np.concatenate([A, A])]),
    "cast": ("Tensor.to.0", [A, {"type": "mindspore.dtype", "value": "Float16"}], [A.astype(np.float16)]),
    "index": ("Tensor.__getitem__.0", [A, {"type": "slice", "value": [1, None, 2]}], [A[1::2]]),
    "several outputs": ("Mint.chunk.0", [A, 2, 1], [A[:, :4], A[:, 4:]]),
    "tied argmax": ("Mint.argmax.0", [np.array([1.0, 3.0, 3.0], np.float32)], [np.array(2)]),
    "tied topk": (
        "Mint.topk.0",
        [np.array([5.0, 5.0, 1.0, 5.0], np.float32), 2],
        [np.array([5.0, 5.0], np.float32), np.array([3, 1])],
    ),
    "tied max with dim": (
        "Mint.max.0",
        [np.array([[1.0, 1.0]], np.float32), 1],
        [np.array([1.0], np.float32), np.array([1])],
    ),
}


@pytest.mark.parametrize("case", PASSES)
def test_right_values_of_every_kind_pass(pytester: pytest.Pytester, case: str) -> None:
    name, arguments, outputs = PASSES[case]
    run(pytester, DumpBuilder(pytester.path).call(name, arguments, outputs)).assert_outcomes(passed=1)


ERRORS = {
    "one int off": ("Mint.add.0", [np.array([2**60]), np.array([1])], [np.array([2**60 + 2])], "2"),
    "one bool off": ("Mint.gt.0", [np.array([1.0, -1.0], np.float32), 0.0], [np.array([True, True])], "at [1]"),
    "opposite tiny values": (
        "Mint.neg.0",
        [np.full(4, 1e-7, np.float32)],
        [np.full(4, 1e-7, np.float32)],
        "Cosine -1 is not above 0.99",
    ),
    "values where the benchmark is zero": (
        "Mint.sub.0",
        [A, A],
        [np.full_like(A, 5e-5)],
        "Cosine 0 is not above 0.99",
    ),
    "Python int": ("Tensor.numel.0", [A], [31], "31"),
    "missing output": ("Mint.chunk.0", [A, 2, 1], [A[:, :4]], "1 outputs tested, but the benchmark has 2"),
    "argmax of a lesser value": ("Mint.argmax.0", [np.array([1.0, 3.0], np.float32)], [np.array(0)], "tested 0"),
    "topk names one element twice": (
        "Mint.topk.0",
        [np.array([5.0, 5.0, 1.0], np.float32), 2],
        [np.array([5.0, 5.0], np.float32), np.array([1, 1])],
        "[1]",
    ),
    "index out of range": ("Mint.argmax.0", [np.array([1.0, 3.0], np.float32)], [np.array(7)], "7"),
    "NaN lost": ("Mint.neg.0", [NAN], [np.where(np.isnan(NAN), np.float32(0), -NAN)], "at [1]"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_values_of_every_kind_are_errors(pytester: pytest.Pytester, case: str) -> None:
    name, arguments, outputs, text = ERRORS[case]
    result = run(pytester, DumpBuilder(pytester.path).call(name, arguments, outputs))
    result.assert_outcomes(failed=1)
    assert text in result.stdout.str()


SKIPS = {
    "communication": ("Distributed.all_reduce.0", [A], [A], "communication"),
    "Primitive with attributes": ("Primitive.conv.Conv2D.0", [A, B], [EXACT], "dump"),
    "process group": ("Mint.add.0", [A, {"type": "mindspore.ProcessGroup", "group_id": "x"}], [A], "ProcessGroup"),
    "custom API": ("my.own.thing.0", [A], [A], "no benchmark"),
    "jit": ("Jit.step.0", [A], [A], "not in the dump"),
}


@pytest.mark.parametrize("case", SKIPS)
def test_what_cannot_be_judged_says_why_and_has_a_row(pytester: pytest.Pytester, reports: Reports, case: str) -> None:
    name, arguments, outputs, text = SKIPS[case]
    result = run(pytester, DumpBuilder(pytester.path).call(name, arguments, outputs), "-rs")
    result.assert_outcomes(skipped=1)
    assert text in result.stdout.str()
    (row,) = reports.results.values()
    assert row["Forward Test Success"] == "SKIP"
    assert text in row["Message"]


def test_both_gradients_of_a_list_are_compared_on_a_device(pytester: pytest.Pytester, reports: Reports) -> None:
    builder = DumpBuilder(pytester.path).call(
        "Mint.cat.0", [[A, A], 0], [np.concatenate([A, A])], incoming=[np.concatenate([A, -A])], gradients=[]
    )
    run(pytester, builder, "--msprobe-device=mindspore:cpu").assert_outcomes(passed=2)
    assert [name for name in reports.details if "backward" in name] == [
        "Mint.cat.0.backward.output.input.0.0",
        "Mint.cat.0.backward.output.input.0.1",
    ]


def test_list_gradients_cannot_be_judged_from_recorded_values(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path).call(
        "Mint.cat.0", [[A, A], 0], [np.concatenate([A, A])], incoming=[np.concatenate([A, A])], gradients=[]
    )
    result = run(pytester, builder, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*lists or keywords*"])


def test_list_gradients_that_are_recorded_are_judged(pytester: pytest.Pytester, reports: Reports) -> None:
    wrong = {"input.0.0": A, "input.0.1": A + 1}
    builder = DumpBuilder(pytester.path).call(
        "Mint.cat.0",
        [[A, A], 0],
        [np.concatenate([A, A])],
        incoming=[np.concatenate([A, A])],
        gradients=[],
        others=wrong,
    )
    run(pytester, builder).assert_outcomes(passed=1, failed=1)
    assert {name: row["Status"] for name, row in reports.details.items() if "backward" in name} == {
        "Mint.cat.0.backward.output.input.0.0": "pass",
        "Mint.cat.0.backward.output.input.0.1": "error",
    }


def test_a_recorded_gradient_that_belongs_to_no_argument_is_an_error(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path).call(
        "Mint.exp.0", [A], [np.exp(A)], incoming=[A], gradients=[A * np.exp(A)], others={"input.1.0": A}
    )
    result = run(pytester, builder)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*other_gradients[[]input.1.0[]]: this gradient fits no tensor argument*"])


def test_gradients_made_of_other_values_than_the_recorded_ones_are_skipped(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.exp.0", [A], [np.exp(A)], incoming=[A], gradients=[A])
    builder.records["Mint.exp.0.backward"]["recomputed"] = {"type": "str", "value": "differs"}
    result = run(pytester, builder, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*its forward was computed again in the backward, with other values than the first*"])


@pytest.mark.parametrize("device", ["recorded", "mindspore:cpu", "torch:cpu"])
def test_attributes_of_a_primitive_are_used(pytester: pytest.Pytester, device: str) -> None:
    attributes = {"transpose_a": False, "transpose_b": True}
    square = np.asarray([[1, 2], [3, 4]], np.float32)
    builder = DumpBuilder(pytester.path).call(
        "Primitive.product.MatMul.0",
        [square, square + 1],
        [square @ (square + 1).T],
        incoming=[square],
        gradients=[square @ (square + 1), square.T @ square],
        attributes=attributes,
    )
    run(pytester, builder, f"--msprobe-device={device}").assert_outcomes(passed=2)


def test_attributes_of_strangers_are_values_of_the_lists(pytester: pytest.Pytester) -> None:
    function = {"type": "function", "value": "os.system"}
    builder = DumpBuilder(pytester.path)
    builder.call("Primitive.a.Softmax.0", [A], [A], attributes={"axis": function})
    builder.call("Primitive.b.BiasAdd.0", [A, A[0]], [A], attributes={"data_format": "/etc/passwd"})
    builder.call("Primitive.c.Softmax.0", [A], [A], attributes={"__class__": -1})
    result = run(pytester, builder, "--msprobe-device=mindspore:cpu", "-rs")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines_random(
        ["*the string '/etc/passwd' is not passed to BiasAdd*", "*(axis) are not in the*"]
    )


def test_a_device_output_of_another_dtype_than_recorded_is_an_error(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path, real=False).call("Mint.add.0", [A, A], [(A + A).astype(np.float16)])
    result = run(pytester, builder, "--msprobe-device=mindspore:cpu")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Tested dtype Float32, but the dump recorded Float16*"])


def test_an_exception_on_the_device_is_an_error_that_says_which_side(
    pytester: pytest.Pytester, reports: Reports
) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.matmul.0", [A, A], [EXACT])
    run(pytester, builder, "--msprobe-device=mindspore:cpu").assert_outcomes(failed=1)
    message = reports.results["Mint.matmul.0"]["Message"]
    assert message.startswith("device (mindspore CPU in the dump dtypes): ")
    assert "C++ Call Stack" not in message


def test_random_inputs_that_both_sides_refuse_are_a_skip_that_names_them(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path, real=False).call("Mint.matmul.0", [A, A], [EXACT])
    result = run(pytester, builder, "--msprobe-device=mindspore:cpu", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*both sides refuse the inputs, which were drawn at random (input_args.0 Float32 *"])


def test_null_gradients_are_told_apart_from_none_at_all(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.exp.0", [A], [np.exp(A)], incoming=[A], gradients=[None])
    result = run(pytester, builder, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*null in place of every gradient*"])


def test_an_exception_in_the_benchmark_is_an_error_that_says_which_side(
    pytester: pytest.Pytester, reports: Reports
) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.matmul.0", [A, A], [EXACT])
    run(pytester, builder).assert_outcomes(failed=1)
    assert reports.results["Mint.matmul.0"]["Message"].startswith("benchmark (torch CPU float64): RuntimeError: ")


def test_bounds_can_be_chosen(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.matmul.0", [A, B], [EXACT + np.float32(0.01)])
    run(pytester, builder).assert_outcomes(failed=1)
    run(pytester, builder, "--msprobe-max-abs=0.02").assert_outcomes(passed=1)
    run(pytester, builder, "--msprobe-max-abs=0.02", "--msprobe-cosine=0.9999999").assert_outcomes(failed=1)


def test_a_backward_without_its_forward_is_a_skip(pytester: pytest.Pytester, reports: Reports) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.matmul.0", [A, B], [EXACT], incoming=[G], gradients=GRADIENTS)
    del builder.records["Mint.matmul.0.forward"]
    run(pytester, builder).assert_outcomes(skipped=1)
    row = reports.results["Mint.matmul.0"]
    assert (row["Forward Test Success"], row["Backward Test Success"]) == ("", "SKIP")


def test_pytorch_and_msadapter_dumps_run_on_pytorch(pytester: pytest.Pytester) -> None:
    for framework in ("pytorch", "mindtorch"):
        builder = DumpBuilder(pytester.path / framework, real=False, framework=framework)
        builder.call("Torch.matmul.0", [A, B], [EXACT], incoming=[G], gradients=GRADIENTS)
        builder.call("Functional.softmax.0", [A], [A], keywords={"dim": -1})
        builder.call("Tensor.add.0", [A, A], [A])
        result = run(pytester, builder, "--msprobe-device=torch:cpu")
        result.assert_outcomes(passed=4)
        result.stdout.fnmatch_lines(["msprobe: *, PyTorch * on CPU against PyTorch * CPU float64"])


def test_in_place_calls_do_not_spoil_the_other_side(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path)
    builder.call("Tensor.add_.0", [A, A], [A + A], incoming=[A], gradients=[A, A])
    builder.call("Tensor.__iadd__.0", [A, A], [A + A])
    run(pytester, builder).assert_outcomes(passed=3)


def test_user_marks_and_hooks_work_on_items(pytester: pytest.Pytester, reports: Reports) -> None:
    pytester.makeconftest(
        """
        import pytest
        def pytest_collection_modifyitems(items):
            items[0].add_marker(pytest.mark.xfail(strict=True, reason="known: CANN 8.0"))
            items[1].add_marker(pytest.mark.skip(reason="not today"))
        """
    )
    builder = DumpBuilder(pytester.path).call("Mint.matmul.0", [A, B], [-EXACT], incoming=[G], gradients=GRADIENTS)
    run(pytester, builder).assert_outcomes(xfailed=1, skipped=1)
    row = reports.results["Mint.matmul.0"]
    assert (row["Forward Test Success"], row["Backward Test Success"]) == ("error", "SKIP")
    assert "backward: Skipped: not today" in row["Message"]


def test_a_frameworks_warnings_are_no_verdicts(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    builder = DumpBuilder(pytester.path)
    # torch.det of a batch and __floordiv__ have both warned in some version; a complex cast does in this one.
    builder.call(
        "Tensor.to.0", [np.array([1 + 2j]), {"type": "mindspore.dtype", "value": "Float64"}], [np.array([1.0])]
    )
    run(pytester, builder).assert_outcomes(passed=1)


def test_a_pytorch_dump_with_pt_files_is_checked_on_recorded_values(pytester: pytest.Pytester) -> None:
    import torch

    builder = DumpBuilder(pytester.path, framework="pytorch")
    builder.call("Torch.matmul.0", [A, B], [EXACT], incoming=[G], gradients=GRADIENTS)
    folder = builder.folder / "dump_tensor_data"
    for file in list(folder.glob("*.npy")):
        torch.save(torch.from_numpy(np.load(file)), file.with_suffix(".pt"))
        file.unlink()
    text = builder.write().read_text().replace(".npy", ".pt").replace("mindspore.Tensor", "torch.Tensor")
    builder.path.write_text(text.replace('"Float32"', '"torch.float32"'))
    result = pytester.runpytest("--msprobe-dump=dump.json")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["msprobe: *, recorded values against *"])


def test_gradients_that_the_existing_tool_loses(pytester: pytest.Pytester, reports: Reports) -> None:
    x = np.array([[1.0, 4.0, 2.0], [3.0, 0.0, 8.0]], np.float32)
    ones = np.ones(2, np.float32)
    builder = DumpBuilder(pytester.path, real=False)
    builder.call("Mint.std_mean.0", [x, 1], [x.std(1, ddof=1), x.mean(1)], incoming=[ones, ones], gradients=[x])
    builder.call(
        "Mint.topk.0", [x, 1, 1], [x[:, :1], np.zeros((2, 1), np.int64)], incoming=[x[:, :1], None], gradients=[x]
    )
    builder.call("Mint.add.0", [x], [x], keywords={"other": x}, incoming=[x], gradients=[x])
    builder.call("Mint.linalg.inv.0", [np.eye(2, dtype=np.float32)], [np.eye(2, dtype=np.float32)])
    run(pytester, builder, "--msprobe-device=torch:cpu").assert_outcomes(passed=7)
    assert "Mint.topk.0.backward.output.0" in reports.details


def test_every_file_is_opened_once_and_every_forward_runs_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from msprobe_collector.dump_format import tensors

    opened: list[str] = []
    forwards: list[int] = []
    plain, matmul = tensors.open_plain, torch.matmul
    monkeypatch.setattr(tensors, "open_plain", lambda path: opened.append(Path(path).name) or plain(path))
    monkeypatch.setattr(torch, "matmul", lambda *given: forwards.append(1) or matmul(*given))
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.matmul.0", [A, B], [EXACT], incoming=[G], gradients=GRADIENTS)
    run(pytester, builder).assert_outcomes(passed=2)
    assert len(forwards) == 1
    assert sorted(opened) == sorted(path.name for path in (pytester.path / "dump_tensor_data").iterdir())


@pytest.mark.parametrize("device", ["recorded", "torch:cpu", "mindspore:cpu"])
def test_a_calls_arrays_are_let_go_of_before_the_next(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    loaded: list[tuple[str, weakref.ref[Array]]] = []
    still_there: list[str] = []
    load = TensorFolder.load

    def load_and_watch(folder: TensorFolder, value: TensorValue, place: FieldPath) -> Array:
        array = load(folder, value, place)
        loaded.append((place.record, weakref.ref(array)))
        return array

    class Witness:
        def pytest_runtest_setup(self, item: pytest.Item) -> None:
            if "neg.1" in item.nodeid:
                still_there.extend(record for record, array in loaded if "neg.0" in record and array() is not None)

    monkeypatch.setattr(TensorFolder, "load", load_and_watch)
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.neg.0", [A], [A], incoming=[A], gradients=[A])
    builder.call("Mint.neg.1", [A], [-A])
    options = (f"--msprobe-dump={builder.write()}", f"--msprobe-device={device}", "--msprobe-bench=torch")
    options += ("--msprobe-error-data=auto", "--msprobe-reproducers=scripts")
    outcome = pytester.inline_run(*options, plugins=[Witness()])
    is_recorded = device == "recorded"
    outcome.assertoutcome(failed=2 if is_recorded else 0, passed=1 if is_recorded else 3)
    # Saving a failing backward reads the recorded forward output once more.
    assert len(loaded) == (7 if is_recorded else 3)
    assert still_there == []


def test_mindspore_that_has_run_already_can_still_be_the_device(pytester: pytest.Pytester) -> None:
    import mindspore

    mindspore.mint.add(mindspore.Tensor(A), 1.0).asnumpy()
    builder = DumpBuilder(pytester.path, real=False).call("Mint.neg.0", [A], [-A])
    run(pytester, builder, "--msprobe-device=mindspore:cpu").assert_outcomes(passed=1)
