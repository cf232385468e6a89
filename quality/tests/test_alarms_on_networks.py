"""The tables of alarms on networks: of the form that their program writes; no package is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quality.architectures import alarms
from quality.architectures.alarms import NETWORKS, Found, alarm_table, is_held_out, network_table
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
    assert network_table(found).rows == (
        ("all", "seen", "0 / 9", "1 / 9", "not trained", "not trained"),
        ("all", "held out", "1 / 5", "not trained", "not trained", "not trained"),
        ("whisper", "seen", "0 / 9", "1 / 9", "not trained", "not trained"),
        ("llama", "held out", "1 / 5", "not trained", "not trained", "not trained"),
    )


def test_a_known_fault_of_a_kernel_is_counted_apart() -> None:
    known = ("Functional.layer_norm.0 backward output.2 Float32", 5.0, 8, "matches bfloat16")
    half = Found("swin", "bfloat16", 0, judged=9, alarms=(known, ALARM))
    found = [half, Found("swin", "float32", 0, judged=8, alarms=(known,))]
    (cells,) = (row for row in network_table(found).rows if row[0] == "swin")
    assert (cells[2], cells[4]) == ("1 / 8", "1 + 1 / 9")
    assert [row[1:3] for row in alarm_table(found).rows if "layer_norm" in row[3]] == [("float32", "0")]


def test_each_alarm_is_listed() -> None:
    (row,) = alarm_table([Found("whisper", "float32", 20, judged=9, skipped=2, alarms=(ALARM,))]).rows
    assert row == ("whisper", "float32", "20", ALARM[0], "1.5", "64", ALARM[3])


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
