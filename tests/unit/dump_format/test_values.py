"""Every value form of collector.md 5.1 and its malformed neighbours."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from msprobe_collector.dump_format import (
    DtypeValue,
    DumpError,
    FieldPath,
    OpaqueValue,
    PlainValue,
    SizeValue,
    TensorValue,
    Value,
    find_dtype,
    tensors_in,
)
from msprobe_collector.dump_format.records import decode_value, refuse_malformed

PLACE = FieldPath("step0/dump.json", "Mint.add.0.forward", "input_args[0]")
FLOAT32 = find_dtype("Float32")
TENSOR = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2, 3], "Max": 2.0, "Min": -1.0, "Mean": 0.5}
TENSOR_WITH_NORM = TENSOR | {"Norm": 3.0}


def decode(encoded: Any) -> Value:
    value = decode_value(encoded)
    refuse_malformed(value, PLACE)
    return value


def plain(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "value": value}


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (None, None),
        ([], ()),
        ({}, {}),
        ([None, [plain("int", 3)], {"a": None}], (None, (PlainValue("int", 3),), {"a": None})),
        (plain("bool", True), PlainValue("bool", True)),
        (plain("int", 3), PlainValue("int", 3)),
        (plain("int", -(2**200)), PlainValue("int", -(2**200))),
        (plain("float", 1.5), PlainValue("float", 1.5)),
        (plain("float", 2), PlainValue("float", 2.0)),
        (plain("float", "Infinity"), PlainValue("float", math.inf)),
        (plain("float", "-Infinity"), PlainValue("float", -math.inf)),
        (plain("float", " inf\t"), PlainValue("float", math.inf)),  # a word of an older dump
        (plain("str", "mean"), PlainValue("str", "mean")),
        (plain("str", "NaN"), PlainValue("str", "NaN")),  # quoted or not in the file: a str stays a str
        (plain("float32", 1.5), PlainValue("float32", 1.5)),
        (plain("int64", 7), PlainValue("int64", 7)),
        (plain("uint8", 7), PlainValue("uint8", 7)),
        (plain("bool_", False), PlainValue("bool_", False)),
        (plain("str_", "x"), PlainValue("str_", "x")),
        (plain("ellipsis", "..."), Ellipsis),
        (plain("slice", [None, 4, -1]), slice(None, 4, -1)),
        (plain("slice", [None, None, None]), slice(None)),
        (plain("mindspore.dtype", "Float16"), DtypeValue(find_dtype("Float16"))),
        (plain("torch.dtype", "torch.float16"), DtypeValue(find_dtype("Float16"))),
        (plain("mindspore.dtype", "float32"), DtypeValue(FLOAT32)),
        (plain("mindspore.dtype", "3"), OpaqueValue("mindspore.dtype")),  # a keyword called dtype whose value was 3
        (plain("torch.Size", [2, 3]), SizeValue([PlainValue("int", 2), PlainValue("int", 3)])),
        (plain("complex64", 1.0), OpaqueValue("complex64")),
        (
            {"type": "mindspore.ProcessGroup", "group_ranks": [0], "group_id": "1f"},
            OpaqueValue("mindspore.ProcessGroup"),
        ),
        (
            {"class_type": "mindspore.mint.distributed.P2POp", "op": "isend"},
            OpaqueValue("mindspore.mint.distributed.P2POp"),
        ),
        ({"type": plain("str", "x"), "b": None}, {"type": PlainValue("str", "x"), "b": None}),  # a user's key
        (TENSOR_WITH_NORM, TensorValue(FLOAT32, (2, 3), 2.0, -1.0, 0.5, 3.0, None)),
        (TENSOR, TensorValue(FLOAT32, (2, 3), 2.0, -1.0, 0.5, None, None)),
        (TENSOR_WITH_NORM | {"data_name": "a.npy"}, TensorValue(FLOAT32, (2, 3), 2.0, -1.0, 0.5, 3.0, "a.npy")),
        (TENSOR_WITH_NORM | {"data_name": -1}, TensorValue(FLOAT32, (2, 3), 2.0, -1.0, 0.5, 3.0, None)),
        (
            TENSOR_WITH_NORM | {"md5": "0000abcd", "layout": {}, "NaN_count": 2, "Inf_count": -1},
            TensorValue(FLOAT32, (2, 3), 2.0, -1.0, 0.5, 3.0, None, md5="0000abcd", nan_count=2),
        ),
        (
            {"type": "mindspore.Tensor", "dtype": "Bool", "shape": [], "Max": True, "Min": False, "Mean": None},
            TensorValue(find_dtype("Bool"), (), True, False, None, None, None),
        ),
        (
            {
                "type": "torch.Tensor",
                "dtype": "torch.int64",
                "shape": [0],
                "Max": None,
                "Min": None,
                "requires_grad": False,
            },
            TensorValue(find_dtype("Int64"), (0,), None, None, None, None, None, requires_grad="False"),
        ),
        (
            TENSOR_WITH_NORM | {"Max": "Infinity", "Min": " -inf\t"},
            TensorValue(FLOAT32, (2, 3), math.inf, -math.inf, 0.5, 3.0, None),
        ),
        (
            {
                "type": "numpy.ndarray",
                "dtype": "float64",
                "shape": [4],
                "Max": 1.0,
                "Min": 0.0,
                "Mean": 0.5,
                "Norm": 1.0,
            },
            TensorValue(find_dtype("Float64"), (4,), 1.0, 0.0, 0.5, 1.0, None, is_numpy=True),
        ),
        (
            {
                "type": "numpy.ndarray",
                "dtype": "<U3",
                "shape": [1],
                "Max": None,
                "Min": None,
                "Mean": None,
                "Norm": None,
            },
            TensorValue(None, (1,), None, None, None, None, None, is_numpy=True),
        ),
    ],
)
def test_every_documented_form_is_read(encoded: Any, value: Value) -> None:
    found = decode(encoded)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, PlainValue):
        assert type(found.value) is type(value.value)


def test_nan_is_a_number() -> None:
    found = decode(plain("float", "NaN"))
    assert math.isnan(found.value)
    tensor = decode(TENSOR_WITH_NORM | {"Mean": "NaN", "Norm": "NaN"})
    assert math.isnan(tensor.mean)
    assert math.isnan(tensor.norm)
    assert tensor.maximum == 2.0


@pytest.mark.parametrize(
    ("encoded", "field", "problem"),
    [
        (3, "", "expected an object with a type, a list or null, found 3"),
        ("x", "", "expected an object with a type, a list or null, found 'x'"),
        (True, "", "expected an object with a type, a list or null, found True"),
        ([None, 1.5], "[1]", "expected an object with a type, a list or null, found 1.5"),
        ({"a": [7]}, ".a[0]", "expected an object with a type, a list or null, found 7"),
        (plain("int", 1.5), "", "type 'int' does not fit its value 1.5"),
        (plain("int", True), "", "type 'int' does not fit its value True"),
        (plain("int", "3"), "", "type 'int' does not fit its value '3'"),
        (plain("bool", 1), "", "type 'bool' does not fit its value 1"),
        (plain("str", None), "", "type 'str' does not fit its value None"),
        (plain("float", "1.5"), "", "type 'float' does not fit its value '1.5'"),
        (plain("float", True), "", "type 'float' does not fit its value True"),
        (plain("float16", [1]), "", "type 'float16' does not fit its value [1]"),
        (plain("float", 10**400), "", f"type 'float' does not fit its value 1{'0' * 76}..."),
        (plain("torch.Size", [2, "x"]), "[1]", "type 'int' does not fit its value 'x'"),
        (plain("slice", [1, 2]), "", "expected [start, stop, step] of whole numbers or null, found [1, 2]"),
        (plain("slice", [1, 2, 0.5]), "", "expected [start, stop, step] of whole numbers or null, found [1, 2, 0.5]"),
        (plain("slice", [True, 2, 1]), "", "expected [start, stop, step] of whole numbers or null, found [True, 2, 1]"),
        (plain("slice", 3), "", "expected [start, stop, step] of whole numbers or null, found 3"),
        (plain("mindspore.dtype", 3), "", "expected the name of a dtype, found 3"),
        (plain("mindspore.dtype", ""), "", "expected the name of a dtype, found ''"),
        (TENSOR | {"dtype": "Float7"}, ".dtype", "unknown tensor dtype 'Float7'"),
        (TENSOR | {"dtype": None}, ".dtype", "unknown tensor dtype None"),
        (TENSOR | {"shape": None}, ".shape", "expected a list of whole numbers, found None"),
        (TENSOR | {"shape": "(2,)"}, ".shape", "expected a list of whole numbers, found '(2,)'"),
        (TENSOR | {"shape": [-1]}, ".shape", "expected a list of whole numbers from 0 to 2**48, found [-1]"),
        (TENSOR | {"shape": [2.0]}, ".shape", "expected a list of whole numbers from 0 to 2**48, found [2.0]"),
        (TENSOR | {"shape": [True]}, ".shape", "expected a list of whole numbers from 0 to 2**48, found [True]"),
        (
            TENSOR | {"shape": [2**48 + 1]},
            ".shape",
            "expected a list of whole numbers from 0 to 2**48, found [281474976710657]",
        ),
        (TENSOR | {"Max": "big"}, ".Max", "expected a number, true, false or null, found 'big'"),
        (TENSOR | {"Norm": []}, ".Norm", "expected a number, true, false or null, found []"),
        (TENSOR | {"Min": -(10**400)}, ".Min", f"expected a number, true, false or null, found -1{'0' * 75}..."),
        (TENSOR | {"data_name": 5}, ".data_name", "expected a file name, found 5"),
        (TENSOR | {"data_name": ["a"]}, ".data_name", "expected a file name, found ['a']"),
    ],
)
def test_a_malformed_value_names_file_record_field_and_what_was_found(encoded: Any, field: str, problem: str) -> None:
    with pytest.raises(DumpError) as caught:
        decode(encoded)
    error = caught.value
    assert (error.file, error.record, error.field) == (PLACE.file, PLACE.record, PLACE.field + field)
    assert str(error) == f"step0/dump.json: Mint.add.0.forward: input_args[0]{field}: {problem}"


def nested(depth: int) -> Any:
    encoded: Any = None
    for _ in range(depth):
        encoded = [encoded]
    return encoded


def test_nesting_is_limited_before_python_is() -> None:
    assert decode(nested(101)) != ()
    with pytest.raises(DumpError, match="nested deeper than 100 levels"):
        decode(nested(102))


def test_tensors_are_found_outermost_and_leftmost_first() -> None:
    names = [{**TENSOR, "data_name": name} for name in "abcd"]
    value = decode([names[0], {"k": [names[1], None], "l": names[2]}, plain("int", 1), [[names[3]]]])
    assert [tensor.data_name for tensor in tensors_in(value)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("shape", "size"), [([], 1), ([0], 0), ([2, 3], 6), ([2**48, 2**48], 2**96), ([5, 0, 7], 0)])
def test_the_size_is_exact_for_any_shape(shape: list[int], size: int) -> None:
    assert decode(TENSOR | {"shape": shape}).size == size


WORDS = st.sampled_from(
    "type value class_type dtype shape Max data_name slice int float32 mindspore.Tensor mindspore.dtype torch.Size "
    "Float32 NaN ellipsis numpy.ndarray str bool".split()
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.just(10**400) | WORDS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=12,
)


@given(ANY_JSON)
def test_whatever_json_stands_there_is_read_or_is_a_dump_error_that_says_where(encoded: Any) -> None:
    error = error_of(encoded)
    assert error is None or error.record == PLACE.record
    assert error is None or str(error).startswith("step0/dump.json: Mint.add.0.forward: input_args[0]")


def error_of(encoded: Any) -> DumpError | None:
    try:
        decode(encoded)
    except DumpError as error:
        return error
    return None
