"""With how many digits a run computed its products, as its manifest says: TF32, HF32, and sums in half dtypes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping

from msprobe_collector.dump_format.manifest import Manifest
from pytest_msprobe.manifests.wording import as_mapping

#: Precisions of float32 products by which PyTorch allows TF32 on CUDA.
_COARSE = ("tf32", "high", "medium")
#: Of each kind of product the switches of PyTorch, the most special first: each decides unless it is not set.
_ON_CUDA = {
    "conv": ("float32 precision of convolutions in cuDNN", "TF32 in cuDNN", "float32 precision"),
    "matmul": (
        "float32 precision of matmul in CUDA",
        "float32 precision",
        "TF32 in cuBLAS",
        "float32 matmul precision",
    ),
}
_ON_NPU = {"conv": "HF32 in convolutions of the NPU", "matmul": "HF32 in products of the NPU"}
_ON_ASCEND = {"conv": "conv_allow_hf32", "matmul": "matmul_allow_hf32"}
_REDUCED = {
    "float16": "reduced precision sums of float16 in cuBLAS",
    "bfloat16": "reduced precision sums of bfloat16 in cuBLAS",
}
_WHOLLY_IN_HALF = "sums in float16 in cuBLAS"
#: What cuDNN and CANN do where nothing is set.
_DEFAULTS = {"conv": True, "matmul": False}


def rounded_operands(manifest: Manifest) -> Mapping[str, str]:
    """Return the format of float32 operands, `TF32` or `HF32`, by kind of product, `conv` and `matmul`.

    What is not rounded is left out, and so is everything where the manifest does not say what computed.
    """
    device, switches = manifest.device.get("kind"), manifest.switches
    if device == "cuda":
        if manifest.environment.get("NVIDIA_TF32_OVERRIDE") == "0":
            return {}
        return {kind: "TF32" for kind in _ON_CUDA if _is_coarse(kind, map(switches.get, _ON_CUDA[kind]))}
    settings: Mapping[str, object] = {}
    if device == "npu":
        settings = {kind: switches[name] for kind, name in _ON_NPU.items() if name in switches}
    elif device == "Ascend":
        config = as_mapping(switches.get("ascend_config"))
        settings = {kind: config[name] for kind, name in _ON_ASCEND.items() if name in config}
    else:
        return {}
    return {kind: "HF32" for kind in _DEFAULTS if settings.get(kind, _DEFAULTS[kind]) is True}


def narrow_sums(manifest: Manifest) -> Mapping[str, float]:
    """Return how many partial sums of a product may be added up in the half dtype of its operands, by that dtype.

    cuBLAS splits long sums among blocks, whose results it may add in the dtype of the output unless told not to.
    """
    if manifest.device.get("kind") != "cuda":
        return {}
    switches = manifest.switches
    # Blocks among which cuBLAS splits a sum at most.
    allowed = {dtype: 32 for dtype, name in _REDUCED.items() if switches.get(name) is not False}
    return {**allowed, "float16": math.inf} if switches.get(_WHOLLY_IN_HALF) is True else allowed


def default_manifest(device: str) -> Manifest:
    """Return what is known of a run that sets nothing, by the label of what computes."""
    kind = next((kind for kind in ("cuda", "npu", "Ascend") if kind.lower() in device.lower()), "")
    return Manifest(device={"kind": kind}, environment=os.environ)


def digits(manifest: Manifest) -> str:
    """Return what a run rounds more than its dtypes say, for people; "" for nothing."""
    words = {"conv": "convolutions", "matmul": "products"}
    parts = [f"{name} in float32 {words[kind]}" for kind, name in rounded_operands(manifest).items()]
    parts += [f"partial sums in {dtype}" for dtype in narrow_sums(manifest)]
    return ", ".join(parts)


def _is_coarse(kind: str, values: Iterable[object]) -> bool:
    for value in values:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value != "none":
            return value in _COARSE
    return _DEFAULTS[kind]
