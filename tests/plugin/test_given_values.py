"""A pre-check judges what it was given: values that a dump does not hold are not drawn against recorded results."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_dumps import change_tensors
from dump_builder import DumpBuilder
from report_reader import Reports

RANDOM = np.random.default_rng(5)
X, Y, G = (RANDOM.standard_normal((8, 8)).astype(np.float32) for _ in range(3))
#: A tensor whose storage could not be read, as the collector writes it inside a function transform.
UNREAD = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8, 8]} | dict.fromkeys(
    ("Max", "Min", "Mean", "Norm")
)


def product(folder: Path, **given: Any) -> DumpBuilder:
    """A right torch.mul, forward and backward, with the values of its places as `given`."""
    values = {"x": X, "y": Y, "output": X * Y, "incoming": G, **given}
    return DumpBuilder(folder, framework="pytorch").call(
        "Torch.mul.0",
        [values["x"], values["y"]],
        [values["output"]],
        incoming=[values["incoming"]],
        gradients=[G * Y, G * X],
    )


def messages(reports: Reports) -> dict[str, str]:
    return {name: row["Message"] for name, row in reports.results.items()}


@pytest.mark.parametrize("entry", [UNREAD, {**UNREAD, "Max": 1.0, "Min": 1.0, "Mean": 1.0, "Norm": 8.0}])
def test_an_argument_without_values_is_not_drawn(pytester: pytest.Pytester, reports: Reports, entry: Any) -> None:
    result = pytester.runpytest(f"--msprobe-dump={product(pytester.path, y=entry).write()}")
    result.assert_outcomes(skipped=2)
    assert result.ret != 0
    (message,) = messages(reports).values()
    assert message.count("device: the dump holds no values of input_args[1] Float32 (8, 8)") == 2
    assert "from None" not in message


def test_an_incoming_gradient_without_values_is_not_drawn(pytester: pytest.Pytester, reports: Reports) -> None:
    dump = product(pytester.path, incoming={**UNREAD, "Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 2.0}).write()
    pytester.runpytest(f"--msprobe-dump={dump}").assert_outcomes(passed=1, skipped=1)
    (message,) = messages(reports).values()
    assert "the dump holds no values of input[0] Float32 (8, 8)" in message


def test_a_device_gets_drawn_values_and_the_row_says_which(pytester: pytest.Pytester, reports: Reports) -> None:
    dump = product(pytester.path, y={**UNREAD, "Max": 2.0, "Min": 1.0, "Mean": 1.5, "Norm": 12.0}).write()
    pytester.runpytest(f"--msprobe-dump={dump}", "--msprobe-device=torch:cpu").assert_outcomes(passed=2)
    (message,) = messages(reports).values()
    assert "drawn at random: input_args[1] Float32 (8, 8) from 1.0 to 2.0" in message
    assert "input_args[0]" not in message


def test_a_statistics_dump_says_that_its_inputs_are_drawn(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path, real=False).call("Mint.mul.0", [X, Y], [X * Y])
    result = pytester.runpytest(f"--msprobe-dump={builder.write()}", "--msprobe-device=torch:cpu")
    line = "msprobe: inputs: drawn at random in the recorded ranges, since the dump holds statistics only"
    result.stdout.fnmatch_lines([line])


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_tensor_dump_without_its_files(pytester: pytest.Pytester, is_resumed: bool) -> None:
    dump = product(pytester.path / "d").write()
    shutil.rmtree(dump.parent / "dump_tensor_data")
    arguments = [f"--msprobe-dump={dump}", "--msprobe-device=torch:cpu", "--msprobe-jsonl=rows.jsonl"]
    result = pytester.runpytest(*arguments)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"msprobe: *{dump}: there are no tensor files in *: only the statistics*are used"])
    if is_resumed:  # nothing is left to do
        again = pytester.runpytest(*arguments, "--msprobe-resume=rows.jsonl")
        again.stdout.fnmatch_lines(["*2 passed*"])
    # Without a device PyTorch would be compared with itself, which is not green.
    assert pytester.runpytest(f"--msprobe-dump={dump}").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_comparison_without_tensor_files(pytester: pytest.Pytester) -> None:
    for name, factor in (("target", 1.5), ("golden", 1.0)):
        product(pytester.path / name, output=np.float32(factor) * X * Y).write()
    shutil.rmtree(pytester.path / "golden" / "dump_tensor_data")
    result = pytester.runpytest("--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-suite=comparison")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*golden/dump.json: there are no tensor files in *"])
    assert "unreadable" not in result.stdout.str()


def test_a_single_lost_file_is_a_fault_of_the_dump(pytester: pytest.Pytester) -> None:
    dump = product(pytester.path).write()
    (dump.parent / "dump_tensor_data" / "Torch.mul.0.forward.input.1.npy").unlink()
    pytester.runpytest(f"--msprobe-dump={dump}").assert_outcomes(failed=2)


def test_attention_with_dropout_is_no_fault_of_the_device(pytester: pytest.Pytester, reports: Reports) -> None:
    from torch import manual_seed, tensor
    from torch.nn import functional

    manual_seed(1)
    q = RANDOM.standard_normal((1, 2, 8, 4)).astype(np.float32)
    builder = DumpBuilder(pytester.path, framework="pytorch")
    for number, dropped in enumerate((0.2, 0.0)):
        made = functional.scaled_dot_product_attention(*[tensor(q)] * 3, dropout_p=dropped).numpy()
        name = f"Functional.scaled_dot_product_attention.{number}"
        builder.call(name, [q, q, q], [made], keywords={"dropout_p": dropped}, incoming=[q], gradients=[])
    pytester.runpytest(f"--msprobe-dump={builder.write()}").assert_outcomes(passed=1, skipped=3)
    reason = "random by nature with dropout_p=0.2: what the call drew inside is not in the dump"
    assert reason in messages(reports)["Functional.scaled_dot_product_attention.0"]


def test_other_spellings_of_lost_values(pytester: pytest.Pytester) -> None:
    """`data_name` -1 and a missing one say the same."""
    dump = product(pytester.path).write()

    def without(entry: dict[str, Any], folder: Path) -> None:
        if entry["data_name"].endswith("forward.input.0.npy"):
            entry["data_name"] = -1

    change_tensors(dump, without)
    pytester.runpytest(f"--msprobe-dump={dump}").assert_outcomes(skipped=2)


@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
@pytest.mark.parametrize("gradients", ["without null", "with null", "with integers"])
def test_an_embedding_is_judged_however_its_gradient_is_written(
    pytester: pytest.Pytester, framework: str, gradients: str
) -> None:
    ids = np.array([1, 3, 3, 0])
    made = np.zeros_like(X)
    np.add.at(made, ids, G[:4])
    first = {"without null": [], "with null": [None], "with integers": [np.zeros_like(ids)]}[gradients]
    api = "Functional.embedding.0" if framework == "pytorch" else "MintFunctional.embedding.0"
    builder = DumpBuilder(pytester.path, framework=framework)
    builder.call(api, [ids, X], [X[ids]], incoming=[G[:4]], gradients=[*first, made])
    pytester.runpytest(f"--msprobe-dump={builder.write()}").assert_outcomes(passed=2)


@pytest.mark.parametrize("device", ["recorded", "torch:cpu", "mindspore:cpu"])
@pytest.mark.parametrize("bench", ["torch", "mindspore"])
def test_a_dump_of_another_version_is_no_fault_of_a_device(
    pytester: pytest.Pytester, reports: Reports, device: str, bench: str
) -> None:
    """Arguments that the installed version does not take, on either side; one call that it takes is judged."""
    builder = DumpBuilder(pytester.path).call("Mint.mul.0", [X, Y], [X * Y])
    builder.call("Mint.mul.1", [X, Y], [X * Y], keywords={"rounding": 3}, incoming=[G], gradients=[G * Y, G * X])
    builder.call("Mint.sum.0", [X, 0, False, 7], [X.sum(0)])
    result = pytester.runpytest(
        f"--msprobe-dump={builder.write()}", f"--msprobe-device={device}", f"--msprobe-bench={bench}"
    )
    result.assert_outcomes(passed=1, skipped=3)
    assert all("not fit" in text for name, text in messages(reports).items() if name != "Mint.mul.0")


def test_a_dtype_that_mindspore_lacks_is_no_fault_of_it(pytester: pytest.Pytester, reports: Reports) -> None:
    from ml_dtypes import float8_e5m2

    builder = DumpBuilder(pytester.path).call("Mint.mul.0", [X.astype(float8_e5m2), Y], [X * Y])
    pytester.runpytest(f"--msprobe-dump={builder.write()}", "--msprobe-device=mindspore:cpu").assert_outcomes(skipped=1)
    assert "has no tensors of dtype float8_e5m2" in messages(reports)["Mint.mul.0"]
