"""Bare NaN and Infinity: the oracle is Python's own lenient JSON parser."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from msprobe_collector.dump_format.values import quote_nonfinite

NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (b"NaN", b'"NaN"'),
        (b"-Infinity", b'"-Infinity"'),
        (b"[Infinity,-Infinity,NaN]", b'["Infinity","-Infinity","NaN"]'),
        (b'{"NaN": NaN}', b'{"NaN": "NaN"}'),
        (b'"NaN" , NaN', b'"NaN" , "NaN"'),
        (b'["a NaN b", NaN]', b'["a NaN b", "NaN"]'),
        (rb'["\"NaN", NaN]', rb'["\"NaN", "NaN"]'),  # an escaped quote ends no string
        (rb'["\\", NaN]', rb'["\\", "NaN"]'),  # an escaped backslash escapes no quote
        (rb'["\\\"NaN\\", -Infinity]', rb'["\\\"NaN\\", "-Infinity"]'),
        (b'["NaN-Infinity", "-Infinity"]', None),
        (rb'["\\NaN"]', None),
        (b"", None),
        (b'{"Max": 1.5, "nan": [null, -1]}', None),
    ],
)
def test_only_tokens_outside_strings_are_quoted(text: bytes, quoted: bytes | None) -> None:
    found = quote_nonfinite(text)
    assert found == (text if quoted is None else quoted)
    if quoted is None:
        assert found is text  # no copy of what may be 100 MB


TRICKY = st.lists(st.sampled_from(["NaN", "-", "Infinity", '"', "\\", "a", "\n", "é", "{", ","])).map("".join)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TRICKY | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(TRICKY, inner),
    max_leaves=20,
)


@given(JSON_VALUES, st.sampled_from([None, 1]), st.booleans())
def test_a_strict_parser_then_reads_what_python_reads(value: Any, indent: int | None, is_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    found = msgspec.json.decode(quote_nonfinite(text.encode()))
    assert repr(with_numbers(found)) == repr(with_numbers(json.loads(text)))


def with_numbers(value: Any) -> Any:
    """`value` with the three words as numbers, which is what a reader of statistics makes of them."""
    if isinstance(value, str):
        return NUMBERS.get(value, value)
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: with_numbers(item) for key, item in value.items()}
    return value
