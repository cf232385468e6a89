from __future__ import annotations

import pytest

from msprobe_collector.dump_format import PlainValue, TensorValue, Value, find_dtype, parse_api_name
from pytest_msprobe.cases.case import bytes_of_outputs

FLOAT32 = find_dtype("Float32")


def plain(value: float | bool) -> PlainValue:
    return PlainValue(type(value).__name__, value)


def tensor(*shape: int) -> TensorValue:
    return TensorValue(FLOAT32, shape, None, None, None, None, None)


@pytest.mark.parametrize(
    ("name", "arguments", "elements"),
    [
        ("Mint.ones", [(plain(300_000_000),)], 300_000_000),
        ("Mint.zeros", [(plain(30), plain(40))], 1200),
        ("Tensor.new_zeros", [tensor(2), (plain(30), plain(40))], 1200),
        ("Mint.full", [(plain(10),), plain(10**12)], 10),
        ("Mint.ones", [plain(3), plain(4)], 12),
        ("Mint.eye", [plain(1000)], 10**6),
        ("Mint.eye", [plain(1000), plain(10)], 10**4),
        ("Mint.arange", [plain(10**9)], 10**9),
        ("Mint.arange", [plain(10), plain(20), plain(0.5)], 20),
        ("Mint.linspace", [plain(0.0), plain(1.0), plain(10**8)], 10**8),
        ("Tensor.repeat", [tensor(10, 10), plain(100), plain(100)], 10**6),
        ("Mint.tile", [tensor(10, 10), (plain(1000), plain(1))], 10**5),
        ("Mint.repeat_interleave", [tensor(10, 10), plain(10**6), plain(0)], 10**8),
        ("MintFunctional.one_hot", [tensor(100), plain(10**6)], 10**8),
        ("MintFunctional.pad", [tensor(2, 3), (plain(10), plain(10), plain(8), plain(0))], 230),
        ("Mint.matmul", [tensor(10, 10), tensor(10, 10)], 0),
    ],
)
def test_the_elements_that_arguments_ask_for(name: str, arguments: list[Value], elements: int) -> None:
    assert bytes_of_outputs(parse_api_name(f"{name}.0"), "mindspore", arguments, {}) == 32 * elements


def test_a_step_of_zero_has_no_bound() -> None:
    arguments = [plain(0), plain(1), plain(0)]
    assert bytes_of_outputs(parse_api_name("Mint.arange.0"), "mindspore", arguments, {}) == float("inf")


def test_keywords_count_and_bools_do_not() -> None:
    keywords: dict[str, Value] = {"size": (plain(7), plain(5)), "requires_grad": plain(True)}
    assert bytes_of_outputs(parse_api_name("Mint.ones.0"), "mindspore", [], keywords) == 32 * 35
