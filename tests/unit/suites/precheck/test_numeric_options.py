"""What --msprobe-hf32, --msprobe-fail-on and --msprobe-draws may be."""

from __future__ import annotations

from typing import Any

import pytest

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.cases.second_runs import has_rounded_operands
from pytest_msprobe.suites.precheck.options import Hf32, NumericSettings

OPTIONS = {option.name: option for option in NumericSettings.declared()}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("hf32", "conv", Hf32("conv")),
        ("hf32", "Mint.conv2d, Mint.mat*", Hf32(patterns=("Mint.conv2d", "Mint.mat*"))),
        ("fail_on", "", frozenset()),
        ("fail_on", "subnormals, saturation", frozenset({"saturation", "subnormals"})),
        ("draws", "20", 20),
    ],
)
def test_values(name: str, text: str, value: Any) -> None:
    assert OPTIONS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"), [("hf32", "matmuls"), ("fail_on", "inf"), ("draws", "0"), ("draws", "-1"), ("draws", "many")]
)
def test_mistakes_name_the_value(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        OPTIONS[name].parse(text)


@pytest.mark.parametrize(
    ("api", "mode", "expected"),
    [
        ("conv2d", "conv", True),
        ("conv2d", "matmul", False),
        ("bmm", "matmul", True),
        ("__matmul__", "all", True),
        ("linear", "off", False),
        ("add", "all", False),
    ],
)
def test_which_apis_multiply_with_rounded_operands(api: str, mode: str, expected: bool) -> None:
    assert has_rounded_operands(api, mode) is expected


def test_a_pattern_means_an_api_call() -> None:
    chosen = Hf32(patterns=("Mint.matmul.3",))
    assert chosen.mode_of(parse_api_name("Mint.matmul.3")) == "all"
    assert chosen.mode_of(parse_api_name("Mint.matmul.4")) == "off"
