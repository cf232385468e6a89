"""Stacks and the log of faults."""

from __future__ import annotations

import json
import os

from msprobe_collector.dump_format.writing.files import GrowingFile
from msprobe_collector.recording.guard import ERROR_LOG, FaultLog
from msprobe_collector.recording.step_files import StackRecorder


def test_stacks_are_grouped_and_innermost_first(tmp_path):
    recorder = StackRecorder(own_package="/nowhere")
    file = GrowingFile(tmp_path / "stack.json")
    for number in range(3):
        recorder.add(f"Mint.add.{number}.forward", recorder.capture(), file)
    recorder.add("Mint.mul.0.forward", recorder.capture(), file)
    recorder.flush(file)
    groups = json.loads(file.path.read_text())
    assert [group[0] for group in groups.values()] == [
        [f"Mint.add.{number}.forward" for number in range(3)],
        ["Mint.mul.0.forward"],
    ]
    first = groups["0"][1][0]
    assert first.startswith(f"File {__file__}, line ")
    assert first.endswith(
        "in test_stacks_are_grouped_and_innermost_first, \n "
        + 'recorder.add(f"Mint.add.{number}.forward", recorder.capture(), file)'
    )
    file.close()


def test_each_kind_of_fault_is_logged_once(tmp_path, caplog):
    log = FaultLog()
    log.write_to(tmp_path)
    for _ in range(3):
        try:
            os.stat(tmp_path / "nowhere")
        except OSError as error:
            log.note("Mint.add.0.forward", error)
    log.note("Mint.add.1.forward", ValueError("other"))
    text = (tmp_path / ERROR_LOG).read_text()
    assert text.count("Call stack (most recent call last):") == 2
    assert "Mint.add.0.forward: FileNotFoundError" in text
    assert len(log.summary()) == 1
    assert log.summary()[0].endswith("3 times")
