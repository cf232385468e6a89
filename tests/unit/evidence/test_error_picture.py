"""Pictures of where a failing output is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.evidence import pictures
from pytest_msprobe.evidence.pictures import ErrorPictures, error_picture
from pytest_msprobe.verdicts import OutputRow


def test_a_wrong_tail_is_a_block_of_marks() -> None:
    reference = np.ones((40, 64))
    tested = reference.astype(np.float32)
    tested[:, 60:] += 0.5
    tested[39, :] += 0.002
    found = error_picture(tested, reference)
    assert (found["rows"], found["columns"], found["of"]) == (40, 64, [40, 64])
    lines = [found["cells"][row * 64 : row * 64 + 64] for row in range(40)]
    assert set(lines[:39]) == {"0" * 60 + "9999"}
    assert lines[39] == "7" * 60 + "9999"
    assert found["exact"] == 39 * 60
    assert dict(found["decades"]) == {-1: 160, -3: 60}
    assert json.loads(json.dumps(found)) == found


def test_nan_on_one_side_is_marked_and_the_rest_stays_measured() -> None:
    reference = np.zeros((3, 4, 5))
    tested = reference.astype(np.float32)
    tested[2, 3, 4] = np.nan
    found = error_picture(tested, reference)
    assert found["of"] == [12, 5]
    assert found["cells"] == "0" * 59 + "N"
    assert found["largest"] == 0


def test_large_and_flat_outputs_have_small_pictures() -> None:
    tested = np.zeros((3000, 2000), np.float32)
    tested[1500:, 500] = 1
    found = error_picture(tested, np.zeros((3000, 2000)))
    assert (found["rows"], found["columns"]) == (40, 64)
    assert found["cells"].count("9") == 20
    flat = error_picture(np.ones(100, np.float32), np.zeros(100))
    assert (flat["rows"], flat["columns"], flat["of"]) == (1, 64, [1, 100])


def test_nan_and_inf_on_both_sides_are_exact() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0])
    found = error_picture(values.astype(np.float32), values)
    assert (found["exact"], found["decades"], found["cells"]) == (4, [], "0000")


def test_the_benchmark_is_rounded_to_the_tested_dtype() -> None:
    reference = np.linspace(0, 1, 300)
    assert error_picture(reference.astype(ml_dtypes.bfloat16), reference)["exact"] > 290


def test_large_outputs_are_sampled() -> None:
    large = np.broadcast_to(np.float32(1), (40 * 3, 1 << 17))
    found = error_picture(large, np.broadcast_to(np.float64(1), large.shape))
    assert found["exact"] == 40 * (1 << 17)


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float16, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_every_kind_of_element_gives_a_picture(dtype: type) -> None:
    tested = np.arange(64).reshape(8, 8) % 2
    found = error_picture(tested.astype(dtype), (1 - tested).astype(dtype))
    assert (found["cells"], found["decades"], found["exact"]) == ("9" * 64, [[0, 64]], 0)


@pytest.mark.parametrize("pair", [(np.ones(4), np.ones(5)), (1, 2), (np.ones(1), np.zeros(1))])
def test_nothing_to_draw_is_no_picture(pair: tuple[Any, Any]) -> None:
    assert drawn([pair]) == [False]


def test_a_picture_that_cannot_be_drawn_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "absolute_errors", None)
    assert drawn([(np.ones(4), np.zeros(4))]) == [False]


def test_only_so_many_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_MOST_PICTURES", 1)
    assert drawn([(np.ones(4), np.zeros(4))] * 2) == [True, False]


def drawn(pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
    rows = [OutputRow(f"output.{n}", "", "", (4,), "error") for n in range(len(pairs))]
    return [row.picture is not None for row in ErrorPictures().added(rows, pairs)]


def test_only_failing_outputs_get_one_and_no_row_is_lost() -> None:
    rows = [OutputRow(f"output.{n}", "", "", (2,), status) for n, status in enumerate(("error", "pass", "error"))]
    arrays = np.ones(2, np.float32), np.zeros(2)
    found = ErrorPictures().added(rows, [arrays, arrays])
    assert [row.picture is not None for row in found] == [True, False, False]
    assert [row.label for row in found] == ["output.0", "output.1", "output.2"]
