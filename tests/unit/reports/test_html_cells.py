"""Cells of the HTML page: escaping, and texts that sort as their numbers."""

from __future__ import annotations

import math

import pytest

from pytest_msprobe.reports.html import name_cell, sort_key, text


def test_keys_sort_as_their_numbers() -> None:
    values = [-math.inf, -1.0, -1e-300, 0.0, 5e-324, 1e-7, 0.99, 1.0, 30.0, 1e300, math.inf]
    keys = [sort_key(value) for value in values]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert sort_key(None) < keys[0]
    assert keys[-1] < sort_key(math.nan)


@pytest.mark.parametrize("hostile", ["<script>", '"><img onerror=x>', "--><b>", "--!><b>", "\ud800<", "a\n<b>"])
def test_no_markup_survives(hostile: str) -> None:
    for markup in (text(hostile), name_cell(hostile, hostile)):
        inner = markup.removeprefix("<td").removesuffix("</td>").replace("<!--", "").replace("-->", "")
        assert "<" not in inner
        assert "\n" not in inner
        markup.encode("utf-8")
    assert '"' not in text(hostile)


def test_long_text_is_cut() -> None:
    assert text("x" * 500) == "x" * 297 + "..."


def test_call_2_sorts_before_call_10() -> None:
    assert name_cell("Mint.add.2", "") < name_cell("Mint.add.10", "")
