"""The dump format, read: dump.json, stack.json, construct.json and the tensors beside them.

This package is the one owner of record names, dtype names and value encodings. It imports no framework, and NumPy
only when a tensor is loaded.
"""

from __future__ import annotations

from msprobe_collector.dump_format.dump import CallStacks, Dump, Frame, read_construct
from msprobe_collector.dump_format.records import (
    API_TYPES,
    DIRECTIONS,
    ApiName,
    BackwardRecord,
    Direction,
    ForwardRecord,
    Record,
    is_cell_record,
    is_communication,
    is_optimizer_record,
    name_fault,
    parse_api_name,
    split_record_name,
    tensor_positions,
)
from msprobe_collector.dump_format.tensors import TENSOR_FOLDER, TensorFolder
from msprobe_collector.dump_format.values import (
    Dtype,
    DtypeValue,
    DumpError,
    FieldPath,
    OpaqueValue,
    PlainValue,
    SizeValue,
    TensorValue,
    Value,
    array_dtype,
    dtype_of_array,
    find_dtype,
    tensors_in,
)

__all__ = [
    "API_TYPES",
    "DIRECTIONS",
    "TENSOR_FOLDER",
    "ApiName",
    "BackwardRecord",
    "CallStacks",
    "Direction",
    "Dtype",
    "DtypeValue",
    "Dump",
    "DumpError",
    "FieldPath",
    "ForwardRecord",
    "Frame",
    "OpaqueValue",
    "PlainValue",
    "Record",
    "SizeValue",
    "TensorFolder",
    "TensorValue",
    "Value",
    "array_dtype",
    "dtype_of_array",
    "find_dtype",
    "is_cell_record",
    "is_communication",
    "is_optimizer_record",
    "name_fault",
    "parse_api_name",
    "read_construct",
    "split_record_name",
    "tensor_positions",
    "tensors_in",
]
