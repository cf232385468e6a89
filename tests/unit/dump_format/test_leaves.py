"""Any record as a flat list of values: what is malformed costs itself, never the record."""

from __future__ import annotations

from typing import Any

import pytest

from msprobe_collector.dump_format import DumpError, find_dtype
from msprobe_collector.dump_format.leaves import Leaf, flatten
from msprobe_collector.dump_format.records import decode_record

TENSOR = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2], "Max": 2.0, "Min": -1.0, "Mean": 0.5}
RECORD = "Mint.add.0.forward"


def leaves(encoded: Any, record: str = RECORD) -> list[Leaf]:
    return flatten(decode_record(encoded, file="dump.json", record=record))


def only(encoded: Any) -> Leaf:
    (leaf,) = leaves({"input_args": [encoded]})
    return leaf


def deep(encoded: Any, levels: int) -> Any:
    for _ in range(levels):
        encoded = [encoded]
    return encoded


def test_fields_stand_in_the_order_of_tables() -> None:
    encoded = {"output": [None], "parameters": {"w": TENSOR}, "input_kwargs": {"k": TENSOR}, "input_args": [TENSOR]}
    found = leaves({**encoded, "is_recompute": False, "attributes": {"pad": None}})
    assert [leaf.path for leaf in found] == ["input.0", "input.k", "parameters.w", "output.0"]
    assert [leaf.place.field for leaf in found] == ["input_args[0]", "input_kwargs.k", "parameters.w", "output[0]"]
    assert [leaf.is_output for leaf in found] == [False, False, False, True]
    assert [leaf.is_none for leaf in found] == [False, False, False, True]


def test_a_tensor_says_what_its_dump_says() -> None:
    more = {"requires_grad": True, "md5": "0000abcd", "data_name": "Mint.add.0.forward.input.0.npy"}
    leaf = only({**TENSOR, **more, "type": "torch.Tensor", "dtype": "torch.float32"})
    assert (leaf.dtype, leaf.shape, leaf.statistics) == ("torch.float32", (2,), (2.0, -1.0, 0.5, None))
    assert (leaf.requires_grad, leaf.md5, leaf.data_name) == ("True", "0000abcd", more["data_name"])
    assert leaf.name == "Mint.add.0.forward.input.0"
    assert leaf.tensor is not None
    assert leaf.tensor.dtype is find_dtype("Float32")


@pytest.mark.parametrize(
    ("encoded", "dtype", "text"),
    [
        (None, "None", "None"),
        ({"type": "int", "value": 3}, "<class 'int'>", "3"),
        ({"type": "bool", "value": True}, "<class 'bool'>", "True"),
        ({"type": "float", "value": "-Infinity"}, "<class 'float'>", "-Infinity"),
        ({"type": "float32", "value": "NaN"}, "<class 'float32'>", "NaN"),
        ({"type": "str", "value": "nan"}, "<class 'str'>", "nan"),
        ({"type": "slice", "value": [1, None, 2]}, "<class 'slice'>", "[1, None, 2]"),
        ({"type": "ellipsis", "value": "..."}, "<class 'ellipsis'>", "..."),
        ({"type": "torch.Size", "value": [2, 3]}, "<class 'torch.Size'>", "[2, 3]"),
        ({"type": "torch.dtype", "value": "torch.float16"}, "<class 'torch.dtype'>", "torch.float16"),
        ({"type": "mindspore.dtype", "value": "3"}, "<class 'mindspore.dtype'>", "3"),
        ({"type": "mindspore.ProcessGroup", "group_ranks": [0, 1]}, "<class 'mindspore.ProcessGroup'>", "[0, 1]"),
        ({"type": "torch.device"}, "<class 'torch.device'>", ""),
        ({"type": "int", "value": "3"}, "<class 'int'>", "3"),  # malformed: shown as it stands there
        (7, "<class 'int'>", "7"),
    ],
)
def test_what_is_no_tensor_is_shown_as_written(encoded: Any, dtype: str, text: str) -> None:
    leaf = only(encoded)
    assert (leaf.dtype, leaf.statistics, leaf.fault) == (dtype, (text,) * 4, "")
    assert not leaf.is_tensor


@pytest.mark.parametrize(
    ("encoded", "field", "problem"),
    [
        ({**TENSOR, "shape": [-1]}, ".shape", "expected a list of whole numbers from 0 to 2**48, found [-1]"),
        ({**TENSOR, "dtype": None}, ".dtype", "unknown tensor dtype None"),
        ({**TENSOR, "Norm": "big"}, ".Norm", "expected a number, true, false or null, found 'big'"),
        ({**TENSOR, "type": "jax.Array"}, "", "a tensor of unknown type 'jax.Array'"),
    ],
)
def test_a_tensor_that_cannot_be_read_says_why_and_keeps_the_rest(encoded: Any, field: str, problem: str) -> None:
    leaf = only({**encoded, "md5": "0000abcd"})
    assert leaf.fault == f"dump.json: {RECORD}: input_args[0]{field}: {problem}"
    assert (leaf.dtype, leaf.shape, leaf.md5) == (str(encoded["dtype"]), (), "0000abcd")
    assert leaf.statistics == (2.0, -1.0, 0.5, encoded.get("Norm"))
    assert leaf.is_tensor
    assert not leaf.is_none
    assert leaf.tensor is None


def test_what_is_nested_too_deeply_costs_itself_only() -> None:
    bad, good = leaves({"input_args": [deep(TENSOR, 150), TENSOR]})
    assert "nested deeper than 100 levels" in bad.fault
    assert good.tensor is not None


def test_a_message_is_its_tensor() -> None:
    operation = {"class_type": "mindspore.mint.distributed.P2POp", "tensor": TENSOR, "op": "isend", "peer": 1}
    assert [leaf.path for leaf in leaves({"input_args": [[operation]]})] == ["input.0.0.tensor"]
    del operation["tensor"]
    assert [leaf.path for leaf in leaves({"input_args": [operation]})] == [
        "input.0.class_type",
        "input.0.op",
        "input.0.peer",
    ]


def test_gradients_of_parameters_stand_alone_in_lists() -> None:
    encoded = {"input_embedding.weight": [TENSOR], "bias": [TENSOR, TENSOR]}
    found = leaves(encoded, "Cell.net.fc.Dense.parameters_grad")
    assert [leaf.path for leaf in found] == ["input_embedding.weight", "bias.0", "bias.1"]
    assert all(leaf.is_output for leaf in found)


def test_values_saved_by_hand_have_any_form() -> None:
    assert [leaf.path for leaf in leaves([TENSOR, {"k": [TENSOR]}], "loss.0.debug")] == ["0", "1.k.0"]
    (alone,) = leaves(TENSOR, "loss.0.debug")
    assert (alone.path, alone.name) == ("", "loss.0.debug")


@pytest.mark.parametrize("encoded", [[TENSOR], None, "x"])
def test_a_record_that_is_no_object_is_refused(encoded: Any) -> None:
    with pytest.raises(DumpError, match=r"Mint\.add\.0\.forward: expected an object, found"):
        leaves(encoded)
