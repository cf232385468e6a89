"""Cells of the HTML page: escaping, and texts that sort as their numbers."""

from __future__ import annotations

import math
import re

import pytest

from pytest_msprobe.reports.html import details, name_cell, sort_key, text
from pytest_msprobe.verdicts import OutputRow, VerdictRow


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


def test_a_picture_has_a_run_for_each_stretch_of_equal_cells() -> None:
    picture = {"of": [2000, 4], "rows": 2, "columns": 4, "largest": 1.0, "cells": "00990N99", "decades": [[-1, 5]]}
    output = OutputRow("output.<0>", "", "", (2, 4), "error", picture={**picture, "exact": 3})
    row = VerdictRow("id", "dump.json", "Mint.add.0", "forward", (), (), "error", "failed", outputs=(output,))
    markup = details(row, (), "why", ())
    assert (
        "Where output.&lt;0&gt; is off: 2,000 x 4 elements, the darker the more; grey is equal; black: NaN or Inf"
        in markup
    )
    paths = dict(re.findall(r'<path class="mark-(.)" d="([^"]*)"/>', markup))
    assert paths == {"0": "M0 0h2M0 1h1", "9": "M2 0h2M2 1h2", "N": "M1 1h1"}
    assert re.findall(r"<tr><td>(.*?)<td>.*?</i>(\d+)", markup) == [("equal", "3"), ("from 1e-1", "5")]
    assert "\n" not in markup
