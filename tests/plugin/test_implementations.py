"""What a run says of another implementation of the same network: as a line, as data, and on the page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from page_reader import page_content
from two_implementations import collected

pytestmark = pytest.mark.needs("torch")

NORM = ("Tensor.pow.0", "Tensor.mean.0", "Tensor.__add__.0", "Torch.rsqrt.0", "Tensor.__mul__.0")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs: `original`, `port`, `port_doubled`, which is wrong, and two in another precision."""
    folder = tmp_path_factory.mktemp("implementations")
    collected(folder, "original", "port", "port_doubled", "original_bfloat16", "original_doubled_bfloat16")
    return folder


def compared(pytester: pytest.Pytester, dumps: Path, target: str, *options: str) -> tuple[str, dict[str, Any]]:
    """Compare a run with the original one: the output, and the answer."""
    sides = (f"--msprobe-dump={dumps / target}", f"--msprobe-golden={dumps / 'original'}", "--msprobe-table=off")
    result = pytester.runpytest_subprocess(*sides, "--msprobe-diagnosis=answer.json", "-q", *options)
    return result.stdout.str(), json.loads((pytester.path / "answer.json").read_text(encoding="utf-8"))


def test_a_right_port_has_regions_and_no_place(pytester: pytest.Pytester, dumps: Path) -> None:
    output, answer = compared(pytester, dumps, "port", "--msprobe-page=page.html")
    content = answer["content"]
    assert answer["outcome"] == "right"
    assert content["parted"] is None
    assert 0 < content["found"] < content["values"]
    regions = content["regions"]
    assert f"found {content['found']} of {content['values']} values; {regions} regions in other steps, equal again" in (
        output.splitlines()
    )
    (pair,) = page_content(pytester.path / "page.html")["sections"][0]["pairs"].values()
    (norm,) = {region for record, _, region, _ in pair["target"] if record.removesuffix(".forward") in NORM}
    assert [record for record, _, region, _ in pair["target"] if region == norm] == [f"{call}.forward" for call in NORM]
    assert [record for record, _, region, _ in pair["golden"] if region == norm] == []
    numbers = {region for side in ("target", "golden") for _, _, region, _ in pair[side]}
    assert len(numbers - {-1}) == regions
    assert {record: partner for record, _, _, partner in pair["target"]}["Tensor.__mul__.1.forward"] == (
        "Functional.rms_norm.0.forward"
    )


def test_the_place_where_a_port_parts_is_in_the_line_the_answer_and_the_page(
    pytester: pytest.Pytester, dumps: Path
) -> None:
    options = ("-n", "2", "--msprobe-jsonl=rows.jsonl", "--msprobe-page=page.html")
    output, answer = compared(pytester, dumps, "port_doubled", *options)
    content, parted = answer["content"], answer["content"]["parted"]
    assert answer["outcome"] == "wrong"
    assert [call["call"] for call in parted["golden"]] == ["Tensor.__truediv__.0"]
    assert [call["call"] for call in parted["target"]] == ["Tensor.__mul__.2"]
    assert parted["factor"] == pytest.approx(2, rel=1e-3)
    assert [call["source"].rpartition("/")[2] for call in parted["golden"]] == ["original.py:21"]
    (line,) = [line for line in output.splitlines() if line.startswith("found ")]
    assert line.startswith(f"found {content['found']} of {content['values']} values; {content['regions']} region")
    assert line.endswith("parted at Tensor.__mul__.2 (port.py:21), golden Tensor.__truediv__.0 (original.py:21)")
    assert pytester.run(sys.executable, "-m", "pytest_msprobe", "page", "rows.jsonl", "-o", "rows.html").ret == 0
    (section,), (of_rows,) = (page_content(pytester.path / name)["sections"] for name in ("page.html", "rows.html"))
    assert of_rows["pairs"] == section["pairs"]
    assert of_rows["diagnosis"]["content"] == section["diagnosis"]["content"]
    (pair,) = section["pairs"].values()
    assert pair["parted"] == section["diagnosis"]["content"]["parted"]
    states = {record: state for record, state, _, _ in pair["target"]}
    place = [f"{call['call']}.{call['direction']}" for call in pair["parted"]["target"]]
    assert states[place[0]] == "first"
    assert states["Tensor.__mul__.1.forward"] == "found", "the norm is right"
    assert states["Functional.linear.1.forward"] == "parted"


@pytest.mark.parametrize(("run", "outcome"), [("original_bfloat16", "right"), ("original_doubled_bfloat16", "wrong")])
def test_another_precision_of_one_script_is_judged_by_what_it_holds(
    pytester: pytest.Pytester, dumps: Path, run: str, outcome: str
) -> None:
    _, answer = compared(pytester, dumps, run)
    places = [finding["place"]["record"] for finding in answer["findings"]]
    assert answer["outcome"] == outcome
    assert places == (["Tensor.__truediv__.0.forward"] if outcome == "wrong" else [])
