"""Which products a run computed with TF32 or HF32, by the settings in its manifest."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from msprobe_collector.dump_format.manifest import Manifest
from pytest_msprobe.manifests.alone import default_manifest, digits, narrow_sums, rounded_operands

CONV, MATMUL = {"conv": "TF32"}, {"matmul": "TF32"}
#: Of PyTorch 2.13 where a script sets nothing.
UNSET = {
    "float32 matmul precision": "highest",
    "TF32 in cuBLAS": False,
    "TF32 in cuDNN": True,
    "float32 precision": "none",
    "float32 precision of convolutions in cuDNN": "tf32",
    "float32 precision of matmul in CUDA": "none",
}


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({}, CONV),
        (UNSET, CONV),
        ({**UNSET, "TF32 in cuDNN": False, "float32 precision of convolutions in cuDNN": "none"}, {}),
        ({**UNSET, "float32 precision of convolutions in cuDNN": "ieee"}, {}),
        ({**UNSET, "TF32 in cuBLAS": True}, CONV | MATMUL),
        ({**UNSET, "float32 precision": "tf32"}, CONV | MATMUL),
        ({"TF32 in cuDNN": False, "float32 matmul precision": "high"}, MATMUL),
        ({"TF32 in cuDNN": False, "TF32 in cuBLAS": False, "float32 matmul precision": "highest"}, {}),
    ],
)
def test_settings_of_pytorch_on_cuda(switches: dict[str, object], expected: dict[str, str]) -> None:
    assert rounded_operands(Manifest(device={"kind": "cuda"}, switches=switches)) == expected
    assert rounded_operands(Manifest(device={"kind": "cpu"}, switches=switches)) == {}


@pytest.mark.parametrize(
    ("device", "switches", "expected"),
    [
        ("npu", {}, {"conv": "HF32"}),
        ("npu", {"HF32 in convolutions of the NPU": False, "HF32 in products of the NPU": True}, {"matmul": "HF32"}),
        ("Ascend", {}, {"conv": "HF32"}),
        ("Ascend", {"ascend_config": {"conv_allow_hf32": False}}, {}),
        ("Ascend", {"ascend_config": {"matmul_allow_hf32": True}}, {"conv": "HF32", "matmul": "HF32"}),
        ("Ascend", {"ascend_config": "unreadable"}, {"conv": "HF32"}),
        ("CPU", {"ascend_config": {"conv_allow_hf32": True}}, {}),
    ],
)
def test_settings_of_npus(device: str, switches: dict[str, object], expected: dict[str, str]) -> None:
    assert rounded_operands(Manifest(device={"kind": device}, switches=switches)) == expected


def test_what_is_not_said_is_no_rounding() -> None:
    assert rounded_operands(Manifest()) == {}
    assert rounded_operands(default_manifest("torch CPU")) == {}
    assert rounded_operands(default_manifest("torch CUDA:0")) == CONV
    assert rounded_operands(default_manifest("torch NPU")) == {"conv": "HF32"}


def test_a_variable_forbids_tf32() -> None:
    environment = {"NVIDIA_TF32_OVERRIDE": "0"}
    assert rounded_operands(Manifest(device={"kind": "cuda"}, environment=environment)) == {}


def test_sums_in_half_dtypes() -> None:
    def of(**switches: bool) -> Mapping[str, float]:
        names = {name.replace("_", " "): value for name, value in switches.items()}
        return narrow_sums(Manifest(device={"kind": "cuda"}, switches=names))

    assert of().keys() == {"float16", "bfloat16"}
    assert of(reduced_precision_sums_of_float16_in_cuBLAS=False).keys() == {"bfloat16"}
    assert of(sums_in_float16_in_cuBLAS=True)["float16"] == math.inf
    assert narrow_sums(Manifest(device={"kind": "cpu"})) == {}
    told = "TF32 in float32 convolutions, partial sums in float16, partial sums in bfloat16"
    assert digits(default_manifest("torch CUDA")) == told
