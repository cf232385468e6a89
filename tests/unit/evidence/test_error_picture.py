"""Pictures of where a failing output is wrong."""

from __future__ import annotations

import json

import numpy as np

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


def test_only_failing_outputs_get_one_and_no_row_is_lost() -> None:
    rows = [OutputRow(f"output.{n}", "", "", (2,), status) for n, status in enumerate(("error", "pass", "error"))]
    arrays = np.ones(2, np.float32), np.zeros(2)
    found = ErrorPictures().added(rows, [arrays, arrays])
    assert [row.picture is not None for row in found] == [True, False, False]
    assert [row.label for row in found] == ["output.0", "output.1", "output.2"]
