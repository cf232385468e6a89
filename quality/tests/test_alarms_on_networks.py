"""The page of alarms on networks: of the form that its program writes, with each network once; no package is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quality.architectures import alarms
from quality.architectures.alarms import NETWORKS, PAGE, Found, is_held_out, listed, table
from quality.architectures.networks import ADDED_LAST

ALARMED = "Functional.linear.2 backward"
ALARM = (f"{ALARMED} output.1 Float32", 1.5, 64, "1 of 64 elements | is off")


def test_a_cell_counts_items_with_an_alarm_and_judged_items() -> None:
    found = [
        Found("whisper", "float32", 0, judged=9, skipped=1),
        Found(
            "whisper", "float32", 20, judged=9, alarms=(ALARM, (ALARM[0].replace("output.1", "output.2"), *ALARM[1:]))
        ),
        Found("whisper", "bfloat16", 0, failure="the process ended"),
        Found("llama", "float32", 0, judged=5, alarms=(ALARM,)),
    ]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(found)][2:]
    assert rows == [
        ["**all seen**", "", "0 / 9", "1 / 9", "not trained", "not trained"],
        ["**all held out**", "", "1 / 5", "not trained", "not trained", "not trained"],
        ["whisper", "", "0 / 9", "1 / 9", "not trained", "not trained"],
        ["llama", "held out", "1 / 5", "not trained", "not trained", "not trained"],
    ]


def test_a_known_fault_of_a_kernel_is_counted_apart() -> None:
    known = ("Functional.layer_norm.0 backward output.2 Float32", 5.0, 8, "matches bfloat16")
    half = Found("swin", "bfloat16", 0, judged=9, alarms=(known, ALARM))
    found = [half, Found("swin", "float32", 0, judged=8, alarms=(known,))]
    (cells,) = (line.split("|") for line in table(found) if line.startswith("| swin"))
    assert (cells[3], cells[5]) == (" 1 / 8 ", " 1 + 1 / 9 ")
    assert [line.split("|")[2].strip() for line in listed(found) if "layer_norm" in line] == ["float32, 0"]


def test_each_alarm_is_listed_with_what_is_skipped() -> None:
    lines = list(listed([Found("whisper", "float32", 20, judged=9, skipped=2, alarms=(ALARM,))]))
    assert "| whisper | float32, 20 | `Functional.linear.2 backward output.1 Float32` | 1.5 | 64 |" in lines[2]
    assert "elements \\| is off" in lines[2]
    assert lines[-1] == "Skipped: 2. Without a verdict: 0."


def test_the_networks_added_last_and_half_of_the_others_are_held_out() -> None:
    names = [item.name for item in NETWORKS]
    assert len(set(names)) == len(names)
    assert all(is_held_out(item.name) for item in ADDED_LAST)
    assert 0.35 < sum(map(is_held_out, names)) / len(names) < 0.65
    assert not is_held_out("whisper")


def test_rows_become_what_was_found(tmp_path: Path) -> None:
    network = next(item for item in NETWORKS if item.name == "whisper")
    place = tmp_path / str(NETWORKS.index(network)) / "float32"
    place.mkdir(parents=True)

    def row(step: int, outcome: str, *statuses: str) -> dict[str, Any]:
        output = {"label": "output.0", "tested_dtype": "Float32", "shape": [2, 3], "message": "", "ratio": None}
        outputs = [{**output, "status": status} for status in statuses]
        dump = str(place / f"step{step}" / "dump.json")
        return {"dump": dump, "call": "Torch.add.0", "part": "forward", "outcome": outcome, "outputs": outputs}

    rows = [row(0, "passed", "pass"), row(0, "failed", "pass", "error"), row(1, "skipped"), row(0, "failed")]
    found = alarms._found(network, "float32", 0, tmp_path, rows)
    assert (found.judged, found.skipped, found.unjudged) == (2, 0, 1)
    assert found.alarms == (("Torch.add.0 forward output.0 Float32", float("inf"), 6, ""),)
    assert alarms._found(network, "float32", 20, tmp_path, rows).skipped == 1
    assert alarms._found(network, "bfloat16", 0, tmp_path, rows).failure == "the process ended"


def test_the_page_has_enough_networks_of_both_frameworks() -> None:
    page = PAGE.read_text(encoding="utf-8")
    known = {item.name: item.framework for item in NETWORKS}
    frameworks = [known[name] for line in page.splitlines() if (name := line.strip("|").split("|")[0].strip()) in known]
    assert len(frameworks) >= 40
    assert set(frameworks) == {"pytorch", "mindspore"}
