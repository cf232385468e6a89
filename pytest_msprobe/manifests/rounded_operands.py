"""Which products a run computed from float32 operands of fewer bits, as its manifest says: TF32 or HF32."""

from __future__ import annotations

from collections.abc import Mapping

from msprobe_collector.dump_format.manifest import Manifest

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
#: What cuDNN and CANN do where nothing is set.
_DEFAULTS = {"conv": True, "matmul": False}


def rounded_operands(manifest: Manifest) -> Mapping[str, str]:
    """Return the format of float32 operands, `TF32` or `HF32`, by kind of product, `conv` and `matmul`.

    What is not rounded is left out, and so is everything where the manifest does not say what computed.
    """
    device, switches = manifest.device.get("kind"), manifest.switches
    if device == "cuda":
        return {kind: "TF32" for kind, names in _ON_CUDA.items() if _is_coarse(kind, [switches.get(n) for n in names])}
    settings: Mapping[str, object] = {}
    if device == "npu":
        settings = {kind: switches[name] for kind, name in _ON_NPU.items() if name in switches}
    elif device == "Ascend":
        config = switches.get("ascend_config")
        known = config if isinstance(config, dict) else {}
        settings = {kind: known[name] for kind, name in _ON_ASCEND.items() if name in known}
    else:
        return {}
    return {kind: "HF32" for kind in _DEFAULTS if settings.get(kind, _DEFAULTS[kind]) is True}


def default_operands(device: str) -> Mapping[str, str]:
    """Return the same of a run that sets nothing, by the label of what computes."""
    kind = "cuda" if "CUDA" in device else "Ascend" if "Ascend" in device else ""
    return rounded_operands(Manifest(device={"kind": kind}))


def _is_coarse(kind: str, values: list[object]) -> bool:
    for value in values:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value != "none":
            return value in _COARSE
    return _DEFAULTS[kind]
