"""Devices compared by digests of their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_msprobe.answers import RowFacts, RunRows
from pytest_msprobe.suites.repeat.report import RepeatReport, compare_devices, listed
from pytest_msprobe.suites.repeat.results import content_digest
from pytest_msprobe.verdicts import RowCounts, VerdictRow

X = np.arange(4096, dtype=np.float32).reshape(64, 64)


def content(*arrays: Any) -> dict[str, Any]:
    digest, outputs = content_digest([f"output.{place}" for place in range(len(arrays))], arrays)
    return {"digest": digest, "outputs": outputs}


def wrong(*places: int) -> np.ndarray:
    found = X.copy()
    found.reshape(-1)[list(places)] += 1
    return found


def test_equal_results_agree() -> None:
    assert compare_devices({device: content(X, 3) for device in "0123"}) is None


def test_the_minority_is_named_with_the_place() -> None:
    found = compare_devices({"0": content(X, X), "1": content(X, X), "2": content(X, wrong(200)), "3": content(X, X)})
    assert found is not None
    assert (found.usual, found.odd) == (("0", "1", "3"), ("2",))
    assert found.where == "output.1 within rows 2 to 3"


def test_a_small_output_tells_the_element() -> None:
    small = X[0, :8]
    other = small.copy()
    other[5] = 0
    found = compare_devices({"0": content(small), "1": content(small), "2": content(other)})
    assert found is not None
    assert found.where == "output.0 within one element at [5]"


def test_two_against_two_has_no_majority() -> None:
    found = compare_devices({"0": content(X), "1": content(wrong(1)), "2": content(X), "3": content(wrong(1))})
    assert found is not None
    assert (found.usual, found.odd) == ((), ("0", "1", "2", "3"))


@pytest.mark.parametrize("other", [content(X.reshape(32, 128)), content(X.astype(np.float64)), content(X, X)])
def test_another_form_is_another_result(other: dict[str, Any]) -> None:
    found = compare_devices({"0": content(X), "1": content(X), "2": other})
    assert found is not None
    assert found.odd == ("2",)
    assert found.where


@pytest.mark.parametrize("value", [np.zeros((0, 3)), np.float32(1).reshape(()), 1.5, None, "text", X.T, X[::2]])
def test_every_value_has_a_digest(value: Any) -> None:
    assert content(value)["digest"] == content(value)["digest"]
    assert len(content(value)["digest"]) == 16


def test_words() -> None:
    assert [listed(["3"]), listed(["0", "1", "2"])] == ["device 3", "devices 0, 1 and 2"]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_answer_names_the_direction_in_which_devices_differ(tmp_path: Path, direction: str) -> None:
    parts = tuple(f"{part}-device{device}" for device in "012" for part in ("forward", "backward"))
    rows = []
    for part in parts:
        held = content(wrong(200) if part == f"{direction}-device1" else X)
        node_id = f"dump.json::Mint.exp.0::{part}"
        rows.append(VerdictRow(node_id, "d", "Mint.exp.0", part, parts, parts, "pass", "passed", attachment=held))
    report = RepeatReport(tmp_path, ("0", "1", "2"), are_elsewhere=False)
    for row in rows:
        report.receive("Mint.exp.0", row)
    report.receive_call("Mint.exp.0", rows)
    report.finish()
    (finding,) = report.answer(RunRows(RowFacts(suite="repeat"), RowCounts())).findings
    assert (finding.kind, finding.place.record) == ("device", f"Mint.exp.0.{direction}")
    assert finding.id == f"dump.json::Mint.exp.0::{direction}-device1"
