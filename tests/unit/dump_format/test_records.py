"""Forward and backward records; positions by the rules of collector.md 5.2."""

from __future__ import annotations

from typing import Any

import pytest

from msprobe_collector.dump_format import BackwardRecord, DumpError, ForwardRecord, PlainValue, tensor_positions
from msprobe_collector.dump_format.records import decode_backward, decode_forward, decode_value

INT = {"type": "int", "value": 3}
THREE = PlainValue("int", 3)


def tensor(dtype: str = "Float32", type_name: str = "mindspore.Tensor") -> dict[str, Any]:
    return {"type": type_name, "dtype": dtype, "shape": [2], "Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 1.0}


def forward(encoded: Any) -> ForwardRecord:
    return decode_forward(encoded, file="dump.json", record="Mint.add.0.forward")


def backward(encoded: Any) -> BackwardRecord:
    return decode_backward(encoded, file="dump.json", record="Mint.add.0.backward")


@pytest.mark.parametrize(
    ("encoded", "record"),
    [
        (
            {"input_args": [INT], "input_kwargs": {"dim": INT}, "output": [INT, None]},
            ((THREE,), {"dim": THREE}, (THREE, None)),
        ),
        ({"input_args": [], "input_kwargs": {}, "output": []}, ((), {}, ())),
        ({"output": [INT]}, (None, {}, (THREE,))),
        ({"input_args": [INT], "input_kwargs": {}}, ((THREE,), {}, None)),
        ({}, (None, {}, None)),
        ({"input_args": [], "parameters": {"w": tensor()}, "is_recompute": False}, ((), {}, None)),
        ({"input_args": [], "input_kwargs": {"type": INT, "self": None}}, ((), {"type": THREE, "self": None}, None)),
    ],
)
def test_a_forward_record_keeps_what_is_missing_apart_from_what_is_empty(encoded: Any, record: tuple[Any, ...]) -> None:
    assert forward(encoded) == ForwardRecord(*record)


@pytest.mark.parametrize(
    ("encoded", "record"),
    [
        ({"input": [None], "output": [None, INT]}, ((None,), (None, THREE))),
        ({"input": []}, ((), None)),
        ({"output": []}, (None, ())),
        ({}, (None, None)),
    ],
)
def test_a_backward_record_counts_its_nulls(encoded: Any, record: tuple[Any, ...]) -> None:
    assert backward(encoded) == BackwardRecord(*record)


@pytest.mark.parametrize(
    ("encoded", "sentence"),
    [
        ([], "dump.json: Mint.add.0.forward: expected an object, found list"),
        (None, "dump.json: Mint.add.0.forward: expected an object, found NoneType"),
        ({"input_args": {}}, "dump.json: Mint.add.0.forward: input_args: expected a list, found dict"),
        ({"output": None}, "dump.json: Mint.add.0.forward: output: expected a list, found NoneType"),
        ({"input_kwargs": []}, "dump.json: Mint.add.0.forward: input_kwargs: expected an object of keyword arguments"),
        ({"input_kwargs": INT}, "dump.json: Mint.add.0.forward: input_kwargs: expected an object of keyword arguments"),
        (
            {"input_kwargs": {"dim": 3}},
            "dump.json: Mint.add.0.forward: input_kwargs.dim: expected an object with a type, a list or null, found 3",
        ),
        (
            {"input_args": [None, [tensor(dtype="X")]]},
            "dump.json: Mint.add.0.forward: input_args[1][0].dtype: unknown tensor dtype 'X'",
        ),
    ],
)
def test_a_malformed_forward_record_is_one_line(encoded: Any, sentence: str) -> None:
    with pytest.raises(DumpError) as caught:
        forward(encoded)
    assert str(caught.value) == sentence


def test_a_malformed_backward_record_is_one_line() -> None:
    with pytest.raises(DumpError) as caught:
        backward({"input": [], "output": 3})
    assert str(caught.value) == "dump.json: Mint.add.0.backward: output: expected a list, found int"


def test_tensor_positions_skip_what_is_no_top_level_tensor() -> None:
    """`f(x, 3, int_t, y, bool_t, nodiff)` gave output [T, null, T, null, null]: five entries for six arguments."""
    arguments = (tensor(), INT, tensor("Int64"), tensor(), tensor("Bool"), tensor(), [tensor()], {"k": tensor()})
    values = tuple(decode_value(item) for item in (*arguments, tensor("float64", "numpy.ndarray"), None))
    assert tensor_positions(values) == (0, 2, 3, 4, 5)
    assert tensor_positions(()) == ()


def test_constructor_attributes_and_further_gradients_are_read_where_the_dump_holds_them() -> None:
    forward = {"input_args": [INT], "attributes": {"stride": [INT, INT], "pad_mode": None}}
    assert decode_forward(forward, file="dump.json", record="Primitive.c.Conv2D.0.forward").attributes == {
        "stride": (THREE, THREE),
        "pad_mode": None,
    }
    backward = {"input": [], "output": [], "other_gradients": {"input.0.1": INT}}
    assert decode_backward(backward, file="dump.json", record="Mint.cat.0.backward").others == {"input.0.1": THREE}
    assert decode_backward({}, file="dump.json", record="Mint.cat.0.backward").others == {}
    with pytest.raises(DumpError, match=r"attributes: expected an object of constructor attributes"):
        decode_forward({"attributes": []}, file="dump.json", record="Primitive.c.Conv2D.0.forward")


def test_the_autocast_of_a_call_is_a_dtype() -> None:
    entry = {
        "device_type": {"type": "str", "value": "cpu"},
        "dtype": {"type": "torch.dtype", "value": "torch.bfloat16"},
    }
    found = decode_forward({"autocast": entry}, file="dump.json", record="Torch.mm.0.forward").autocast
    assert found is not None
    assert found.name == "BFloat16"
    assert decode_forward({}, file="dump.json", record="Torch.mm.0.forward").autocast is None


@pytest.mark.parametrize("entry", [[], {}, {"dtype": INT}, {"dtype": {"type": "torch.dtype", "value": "os.system"}}])
def test_another_autocast_is_one_line(entry: Any) -> None:
    with pytest.raises(DumpError, match=r"dump.json: Torch.mm.0.forward: autocast"):
        decode_forward({"autocast": entry}, file="dump.json", record="Torch.mm.0.forward")
