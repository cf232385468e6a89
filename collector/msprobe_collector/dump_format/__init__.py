"""The dump format, read: dump.json, stack.json, construct.json and the tensors beside them.

This package is the one owner of record names, dtype names and value encodings. It imports no framework, and NumPy
only when a tensor is loaded.
"""

from __future__ import annotations

from msprobe_collector.dump_format.dump import (
    CallStacks as CallStacks,
    Dump as Dump,
    Frame as Frame,
    read_construct as read_construct,
)
from msprobe_collector.dump_format.records import (
    API_TYPES as API_TYPES,
    DIRECTIONS as DIRECTIONS,
    ApiName as ApiName,
    BackwardRecord as BackwardRecord,
    Direction as Direction,
    ForwardRecord as ForwardRecord,
    Record as Record,
    is_cell_record as is_cell_record,
    is_communication as is_communication,
    is_compiled_record as is_compiled_record,
    is_optimizer_record as is_optimizer_record,
    name_fault as name_fault,
    parse_api_name as parse_api_name,
    split_record_name as split_record_name,
    tensor_positions as tensor_positions,
)
from msprobe_collector.dump_format.tensors import TENSOR_FOLDER as TENSOR_FOLDER, TensorFolder as TensorFolder
from msprobe_collector.dump_format.values import (
    Dtype as Dtype,
    DtypeValue as DtypeValue,
    DumpError as DumpError,
    FieldPath as FieldPath,
    OpaqueValue as OpaqueValue,
    PlainValue as PlainValue,
    SizeValue as SizeValue,
    TensorValue as TensorValue,
    Value as Value,
    array_dtype as array_dtype,
    dtype_of_array as dtype_of_array,
    find_dtype as find_dtype,
    tensors_in as tensors_in,
)
