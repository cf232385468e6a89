"""Operators of Ascend: torch_npu registers them as PyTorch operators, so that they are seen as all others are.

`torch_npu.npu_rms_norm` is the operator `npu::npu_rms_norm`, recorded as `NPU.npu_rms_norm`; its wrappers written in
Python call such operators. Nothing of this has run on an NPU: it was tested with operators of the same names that
compute on the CPU.
"""

from __future__ import annotations

#: Type of record by namespace of operators.
NAMESPACES = {"npu": "NPU", "atb": "NPU.atb", "mindspeed": "NPU.mindspeed"}
