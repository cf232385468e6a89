"""Products that a device computes from float32 operands of fewer bits, judged as the settings of the run say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.cases.second_runs import rounded

pytestmark = pytest.mark.needs("torch")


def convolved(folder: Path, format_name: str, *, scale: float = 1.0, **switches: bool) -> None:
    """A convolution and a product on a stand-in for CUDA that rounds operands, with the run.json of that run."""
    import torch

    rng = np.random.default_rng(0)
    image, kernel = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 6, 6), (4, 3, 3, 3)))
    left, right = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    given = (torch.from_numpy(rounded(array, format_name)) for array in (image, kernel))
    output = (scale * torch.conv2d(*given)).numpy().astype(np.float32)
    builder = DumpBuilder(folder, framework="pytorch")
    builder.call("Functional.conv2d.0", [image, kernel], [output])
    product = rounded(left, format_name) @ rounded(right, format_name)
    builder.call("Torch.matmul.0", [left, right], [product.astype(np.float32)]).write()
    manifest = {"schema": 1, "framework": "pytorch", "device": {"kind": "cuda"}, "switches": switches}
    (folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize(
    ("switches", "passed"),
    [
        ({"TF32 in cuDNN": True, "TF32 in cuBLAS": False}, 1),
        ({"TF32 in cuDNN": True, "TF32 in cuBLAS": True}, 2),
        ({"TF32 in cuDNN": False, "TF32 in cuBLAS": False}, 0),
        ({}, 1),
    ],
)
def test_tf32_is_right_where_the_run_allowed_it(
    pytester: pytest.Pytester, switches: dict[str, bool], passed: int
) -> None:
    convolved(pytester.path / "step0", "TF32", **switches)
    result = pytester.runpytest(
        "--msprobe-dump=step0", "--msprobe-standard=backward-error", "--tb=no", "--junitxml=junit.xml"
    )
    result.assert_outcomes(passed=passed, failed=2 - passed)
    text = (pytester.path / "junit.xml").read_text(encoding="utf-8")
    assert text.count('name="operands" value="TF32"') == passed


def test_an_error_that_is_larger_than_that_of_tf32_fails(pytester: pytest.Pytester) -> None:
    convolved(pytester.path / "step0", "TF32", scale=1.01, **{"TF32 in cuDNN": True, "TF32 in cuBLAS": True})
    result = pytester.runpytest("--msprobe-dump=step0", "--msprobe-standard=backward-error", "--tb=no", "-rf")
    result.stdout.fnmatch_lines(["FAILED *Functional.conv2d.0::forward*"])
    result.assert_outcomes(passed=1, failed=1)
