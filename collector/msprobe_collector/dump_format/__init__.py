"""The dump format, read: dump.json, stack.json, construct.json and the tensors beside them.

This package is the one owner of record names, dtype names and value encodings. It imports no framework, and NumPy
only when a tensor is loaded.
"""

from __future__ import annotations

from msprobe_collector.dump_format.construct import read_construct
from msprobe_collector.dump_format.dtypes import Dtype, Kind, array_dtype, dtype_of_array, find_dtype
from msprobe_collector.dump_format.dump import Dump
from msprobe_collector.dump_format.errors import DumpError
from msprobe_collector.dump_format.names import (
    API_TYPES,
    DIRECTIONS,
    ApiName,
    Direction,
    is_cell_record,
    is_communication,
    name_fault,
    parse_api_name,
    split_record_name,
)
from msprobe_collector.dump_format.records import BackwardRecord, ForwardRecord, Record, tensor_positions
from msprobe_collector.dump_format.stacks import CallStacks, Frame
from msprobe_collector.dump_format.tensors import TENSOR_FOLDER, TensorFolder
from msprobe_collector.dump_format.values import (
    DtypeValue,
    MalformedValue,
    OpaqueValue,
    Place,
    PlainValue,
    SizeValue,
    TensorValue,
    Value,
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
    "ForwardRecord",
    "Frame",
    "Kind",
    "MalformedValue",
    "OpaqueValue",
    "Place",
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
    "name_fault",
    "parse_api_name",
    "read_construct",
    "split_record_name",
    "tensor_positions",
    "tensors_in",
]
