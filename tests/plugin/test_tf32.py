"""Products that a device computes from float32 operands of fewer bits, judged as the settings of the run say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.cases.second_runs import rounded

pytestmark = pytest.mark.needs("torch")


def convolved(
    folder: Path, formats: str, *, scale: float = 1.0, calls: int = 1, switches: Mapping[str, bool] | None = None
) -> None:
    """Convolutions and products on a stand-in for CUDA that rounds operands, with the run.json of that run if any.

    `formats` are those of convolution and product, "" for all digits.
    """
    import torch

    rng = np.random.default_rng(0)
    builder = DumpBuilder(folder, framework="pytorch")
    of_conv, of_product = formats.split(",")

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    def seen(array: Any, format_name: str) -> Any:
        return torch.from_numpy(rounded(array, format_name) if format_name else array.astype(np.float64))

    def plain(tensor: Any) -> Any:
        return tensor.numpy().astype(np.float32)

    for number in range(calls):
        image, kernel, left, right = draw(2, 3, 6, 6), draw(4, 3, 3, 3), draw(8, 8), draw(8, 8)
        x, w = seen(image, of_conv), seen(kernel, of_conv)
        output = scale * torch.conv2d(x, w)
        incoming = draw(*output.shape)
        gradient = seen(incoming, of_conv)
        gradients = (
            torch.nn.grad.conv2d_input(x.shape, w, gradient),
            torch.nn.grad.conv2d_weight(x, w.shape, gradient),
        )
        builder.call(
            f"Functional.conv2d.{number}",
            [image, kernel],
            [plain(output)],
            incoming=[incoming],
            gradients=[plain(gradient) for gradient in gradients],
        )
        product = seen(left, of_product) @ seen(right, of_product)
        builder.call(f"Torch.matmul.{number}", [left, right], [plain(product)])
    builder.write()
    if switches is not None:
        write_manifest(folder, switches)


def write_manifest(folder: Path, switches: Mapping[str, bool]) -> None:
    manifest = {"schema": 1, "framework": "pytorch", "device": {"kind": "cuda"}, "switches": switches}
    (folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize(
    ("switches", "passed"),
    [
        ({"TF32 in cuDNN": True, "TF32 in cuBLAS": False}, 2),
        ({"TF32 in cuDNN": True, "TF32 in cuBLAS": True}, 3),
        ({"TF32 in cuDNN": False, "TF32 in cuBLAS": False}, 0),
        ({}, 2),
    ],
)
@pytest.mark.parametrize("standard", ["backward-error", "cosine-maxabs"])
def test_tf32_is_right_where_the_run_allowed_it(
    pytester: pytest.Pytester, switches: dict[str, bool], passed: int, standard: str
) -> None:
    convolved(pytester.path / "step0", "TF32,TF32", switches=switches)
    result = pytester.runpytest(
        "--msprobe-dump=step0", f"--msprobe-standard={standard}", "--tb=no", "--junitxml=junit.xml"
    )
    result.assert_outcomes(passed=passed, failed=3 - passed)
    assert ("TF32 allowed" in result.stdout.str()) == (passed == 3)
    text = (pytester.path / "junit.xml").read_text(encoding="utf-8")
    assert text.count('name="operands" value="TF32"') == passed


def test_an_error_that_is_larger_than_that_of_tf32_fails(pytester: pytest.Pytester) -> None:
    switches = {"TF32 in cuDNN": True, "TF32 in cuBLAS": True}
    convolved(pytester.path / "step0", "TF32,TF32", scale=1.01, switches=switches)
    result = pytester.runpytest("--msprobe-dump=step0", "--msprobe-standard=backward-error", "--tb=no", "-rf")
    result.stdout.fnmatch_lines(["FAILED *Functional.conv2d.0::forward*"])
    result.assert_outcomes(passed=2, failed=1)


@pytest.mark.parametrize("options", [(), ("--msprobe-standard=backward-error", "-n2")])
def test_without_run_json_tf32_of_all_convolutions_is_the_default(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    convolved(pytester.path / "step0", "TF32,", calls=2)
    result = pytester.runpytest("--msprobe-dump=step0", "--tb=no", *options)
    result.assert_outcomes(passed=2, xfailed=4)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["not judged: TF32 (4): all convolutions of float32, as is the default; *"])


@pytest.mark.parametrize(
    ("first", "second", "wrong"),
    [("TF32,", ",", "conv2d"), ("TF32,", "HF32,", "conv2d"), (",TF32", ",TF32", "matmul")],
    ids=["one with all digits", "two formats", "products"],
)
def test_without_run_json_other_tf32_is_wrong(pytester: pytest.Pytester, first: str, second: str, wrong: str) -> None:
    for name, formats in (("step0", first), ("step1", second)):
        convolved(pytester.path / name, formats)
    result = pytester.runpytest("--msprobe-dump=step0", "--msprobe-dump=step1", "--tb=no")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert wrong in result.stdout.str().partition("\nWrong: ")[2].partition("\n")[0]
    assert "as is the default" not in result.stdout.str()


@pytest.mark.parametrize(("is_allowed", "failed"), [(True, 0), (False, 1)])
def test_partial_sums_in_half_are_right_where_the_run_allowed_them(
    pytester: pytest.Pytester, is_allowed: bool, failed: int
) -> None:
    rng = np.random.default_rng(0)
    left, right = ((rng.standard_normal(shape) + 0.5).astype(np.float16) for shape in ((16, 4096), (4096, 16)))
    total = np.zeros((16, 16), np.float16)
    for rows, columns in zip(np.split(left, 32, 1), np.split(right, 32, 0)):
        total += (rows.astype(np.float32) @ columns.astype(np.float32)).astype(np.float16)
    builder = DumpBuilder(pytester.path / "step0", framework="pytorch")
    builder.call("Torch.matmul.0", [left, right], [total]).write()
    write_manifest(pytester.path / "step0", {"reduced precision sums of float16 in cuBLAS": is_allowed})
    result = pytester.runpytest("--msprobe-dump=step0", "--msprobe-standard=backward-error", "--tb=no")
    result.assert_outcomes(passed=1 - failed, failed=failed)
    assert ("float16 sums allowed" in result.stdout.str()) == is_allowed
