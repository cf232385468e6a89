"""Record names against the table of collector.md section 4, and against every name in real dumps."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st
from real_dumps import real_dumps

from msprobe_collector.dump_format import (
    API_TYPES,
    ApiName,
    is_cell_record,
    name_fault,
    parse_api_name,
    split_record_name,
)

DUMPS = real_dumps()

API_RECORDS = [
    ("Mint.matmul.3.forward", "Mint", "matmul", 3, "forward", "matmul"),
    ("Mint.linalg.inv.0.forward", "Mint", "linalg.inv", 0, "forward", "inv"),
    ("MintFunctional.softmax.12.backward", "MintFunctional", "softmax", 12, "backward", "softmax"),
    ("MintDistributed.all_reduce.0.forward", "MintDistributed", "all_reduce", 0, "forward", "all_reduce"),
    ("Distributed.broadcast.1.forward", "Distributed", "broadcast", 1, "forward", "broadcast"),
    ("Tensor.__add__.0.forward", "Tensor", "__add__", 0, "forward", "__add__"),
    ("Functional.gather.0.backward", "Functional", "gather", 0, "backward", "gather"),
    ("Primitive.conv.Conv2D.0.backward", "Primitive", "conv.Conv2D", 0, "backward", "Conv2D"),
    ("Jit.construct.0.forward", "Jit", "construct", 0, "forward", "construct"),
    ("Torch.add.7.forward", "Torch", "add", 7, "forward", "add"),
    ("Aten.mm.default.0.forward", "Aten", "mm.default", 0, "forward", "default"),
    ("VF.lstm.0.forward", "VF", "lstm", 0, "forward", "lstm"),
    ("NPU.npu_swiglu.0.backward", "NPU", "npu_swiglu", 0, "backward", "npu_swiglu"),
    ("Optimizer.AdamW.1.forward", "Optimizer", "AdamW", 1, "forward", "AdamW"),
    ("my_lib.ops.custom_add.0.forward", "my_lib", "ops.custom_add", 0, "forward", "custom_add"),
    ("Mint.forward.0.forward", "Mint", "forward", 0, "forward", "forward"),
    ("Mint.add.999999999999999999.forward", "Mint", "add", 999999999999999999, "forward", "add"),
]


@pytest.mark.parametrize(("record", "api_type", "api", "number", "direction", "short"), API_RECORDS)
def test_an_api_record_has_type_api_number_and_direction(
    record: str, api_type: str, api: str, number: int, direction: str, short: str
) -> None:
    found = split_record_name(record)
    assert found is not None
    call, found_direction = found
    assert found_direction == direction
    assert call == record.removesuffix(f".{direction}")
    name = parse_api_name(call)
    assert name == ApiName(api_type, api, number)
    assert name.short == short
    assert str(name) == call
    assert not is_cell_record(record)


def test_every_documented_prefix_is_in_the_table_above() -> None:
    assert set(API_TYPES) <= {row[1] for row in API_RECORDS}


def test_the_class_of_a_primitive_is_told_from_the_attribute_that_held_it() -> None:
    assert parse_api_name("Primitive.conv.Conv2D.0").short == "Conv2D"


@pytest.mark.parametrize(
    "record",
    [
        "Cell.m.inner.Inner.forward.1",
        "Cell.m.inner.Inner.backward.0",
        "Cell.x.Dense.parameters_grad.0",
        "Cell.0.net.Dense.forward.3",
        "Cell.1.Dense.forward.3",
        "Module.layer.Linear.forward.0",
    ],
)
def test_cell_records_are_told_from_api_records(record: str) -> None:
    assert is_cell_record(record)
    assert split_record_name(record) is None


@pytest.mark.parametrize("record", ["Cellular.add.0.forward", "Mint.Cell.0.forward", "cell.add.0.forward", ""])
def test_what_only_resembles_a_cell_is_none(record: str) -> None:
    assert not is_cell_record(record)


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        ("", "the record name '' does not end in .forward or .backward"),
        ("Mint.add.0", "the record name 'Mint.add.0' does not end in .forward or .backward"),
        ("Mint.add.0.Forward", "the record name 'Mint.add.0.Forward' does not end in .forward or .backward"),
        ("Mint.add.0.forward.", "the record name 'Mint.add.0.forward.' does not end in .forward or .backward"),
        ("forward", "the record name 'forward' has no call number before .forward"),
        ("0.forward", "the record name '0.forward' has no call number before .forward"),
        ("Mint.add.forward", "the record name 'Mint.add.forward' has no call number before .forward"),
        ("Mint.add.x.backward", "the record name 'Mint.add.x.backward' has no call number before .backward"),
        ("Mint.add.-1.forward", "the record name 'Mint.add.-1.forward' has no call number before .forward"),
        ("Mint.add.1_0.forward", "the record name 'Mint.add.1_0.forward' has no call number before .forward"),
        ("Mint.0.forward", "the record name 'Mint.0.forward' is not <type>.<api>.<number>.forward"),
        ("Mint..0.forward", "the record name 'Mint..0.forward' is not <type>.<api>.<number>.forward"),
        (".add.0.backward", "the record name '.add.0.backward' is not <type>.<api>.<number>.backward"),
        ("Mint.add.\u0663.forward", "the record name 'Mint.add.\u0663.forward' is not <type>.<api>.<number>.forward"),
        (
            "Mint.add.1000000000000000000.forward",
            "the record name 'Mint.add.1000000000000000000.forward' is not <type>.<api>.<number>.forward",
        ),
    ],
)
def test_a_malformed_name_is_refused_with_its_reason(record: str, fault: str) -> None:
    assert split_record_name(record) is None
    assert name_fault(record) == fault


@given(st.text("Mint.add0forwardCel\u0663\n ", max_size=40))
def test_any_text_is_either_a_name_whose_parts_give_it_back_or_refused(text: str) -> None:
    found = split_record_name(text)
    if found is not None:
        call, direction = found
        name = parse_api_name(call)
        assert text == f"{call}.{direction}"
        assert int(call.split(".")[-1]) == name.number
        assert call.startswith(f"{name.type}.{name.api}.")
        assert name.api.strip(".")


@pytest.mark.parametrize(
    ("dump", "records", "calls"),  # the numbers that tests/real_dumps.py states
    [
        ("quickstart/dump.json", 1, 1),
        ("gpt_tiny_statistics/step0/proc0/dump.json", 180, 90),
        ("gpt_tiny_tensor/step0/proc0/dump.json", 180, 90),
        ("gpt_tiny_float16/step0/rank0/dump.json", 180, 90),
        ("gpt_tiny_mix/step0/rank0/dump.json", 236, 90),
    ],
)
def test_every_name_of_a_real_dump_is_an_api_call_or_a_cell(dump: str, records: int, calls: int) -> None:
    names = list(json.loads((DUMPS / dump).read_bytes())["data"])
    assert len(names) == records
    found = [split_record_name(name) for name in names if not is_cell_record(name)]
    assert None not in found
    assert len({split[0] for split in found if split is not None}) == calls
