"""What of a value is collected: rows of a request or a slice, and tensors that differ from an earlier dump."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from debugger_fixtures import forget
from torch import nn

from msprobe_collector import DebuggerError
from msprobe_collector.pytorch import PrecisionDebugger
from pytest_msprobe.__main__ import main

X = torch.arange(24.0).reshape(8, 3)


def tensor_of(folder: Path, entry: dict[str, Any]) -> torch.Tensor:
    return torch.load(folder / "dump_tensor_data" / entry["data_name"])


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("summary", ["statistics", "sketch", "md5"])
def test_a_slice_stands_in_the_place_of_the_whole(make_debugger, records, step_folder, task, summary) -> None:
    part = {"dim": 0, "size": 8, "begin": 2, "end": 5}
    with make_debugger(task=task, slice=[part], summary_mode=summary).collect():
        torch.add(X, torch.ones(3))
    whole, other = records()["Torch.add.0.forward"]["input_args"]
    assert (whole["shape"], whole["slice"]) == ([3, 3], [part])
    assert (whole["Max"], whole["Min"]) == (14.0, 6.0)
    assert other["shape"] == [3]
    assert "slice" not in other
    if task == "tensor":
        assert torch.equal(tensor_of(step_folder(), whole), X[2:5])


def test_gradients_are_cut_as_their_values_are(make_debugger, records) -> None:
    layer = nn.Linear(3, 2)
    with make_debugger(slice=[{"dim": 0, "size": 8, "begin": 0, "end": 1}], level="mix").collect(nn.Sequential(layer)):
        layer(X).sum().backward()
    assert records()["Functional.linear.0.backward"]["input"][0]["shape"] == [1, 2]
    assert layer.weight.grad is not None


def test_rows_of_a_request_are_those_of_the_batch(make_debugger, records, caplog) -> None:
    debugger = make_debugger(request_id="b")
    for scheduled in ({"a": 3, "b": 2, "c": 3}, {"a": 8}):
        debugger.start(scheduled_tokens=scheduled)
        torch.sin(X)
        debugger.stop()
        debugger.step()
    values = [records(step)["Torch.sin.0.forward"]["input_args"][0] for step in (0, 1)]
    assert values[0]["slice"] == [{"dim": 0, "size": 8, "begin": 3, "end": 5}]
    assert values[0]["shape"] == [2, 3]
    assert values[1]["shape"] == [8, 3]
    assert "request_id 'b' is not among scheduled_tokens" in caplog.text
    with pytest.raises(DebuggerError, match="is not a number of rows for each request"):
        debugger.start(scheduled_tokens=[3])


def test_a_call_of_parts_is_not_computed_again(make_debugger, tmp_path, capsys) -> None:
    with make_debugger(task="tensor", slice=[{"dim": 0, "size": 8, "begin": 0, "end": 4}]).collect():
        torch.softmax(X, 0)
    forget(PrecisionDebugger)
    assert main(["diagnose", str(tmp_path / "dump")]) == 5
    assert "the dump holds parts of its tensors alone" in capsys.readouterr().out


def computed(factor: float) -> None:
    h = torch.sin(X)
    torch.exp(torch.tanh(h * factor))


@pytest.mark.parametrize("checksum", ["fingerprint", "md5"])
@pytest.mark.parametrize(("most", "kept"), [(1, 1), (-1, 5)])
def test_only_what_differs_from_an_earlier_dump_keeps_its_tensors(tmp_path, checksum, most, kept) -> None:
    def collect(name: str, factor: float, task: str, **section: Any) -> Path:
        forget(PrecisionDebugger)
        file = tmp_path / f"{name}.json"
        content = {"task": task, "level": "L1", "dump_path": str(tmp_path / name), task: section}
        file.write_text(json.dumps(content))
        with PrecisionDebugger(file).collect():
            computed(factor)
        forget(PrecisionDebugger)
        return tmp_path / name / "step0/proc0"

    collect("bench", 1.0, "statistics", summary_mode=checksum)
    folder = collect("run", 1.5, "tensor", bench_path=str(tmp_path / "bench"), diff_nums=most)
    records = json.loads((folder / "dump.json").read_text())["data"]
    names = [
        entry["data_name"]
        for record in records.values()
        for entry in (*record["input_args"], *record["output"])
        if "data_name" in entry
    ]
    assert len(names) == kept
    assert names[0] == "Tensor.__mul__.0.forward.output.0.pt"
    assert sorted(path.name for path in (folder / "dump_tensor_data").iterdir()) == sorted(names)
    assert all("Max" in entry for record in records.values() for entry in record["output"])


def test_an_earlier_dump_without_fingerprints_keeps_all(make_debugger, records, tmp_path, caplog) -> None:
    (tmp_path / "bench/step0/proc0").mkdir(parents=True)
    (tmp_path / "bench/step0/proc0/dump.json").write_text('{"data": {}}')
    with make_debugger(task="tensor", bench_path=str(tmp_path / "bench")).collect():
        torch.sin(X)
    assert "has neither fingerprints nor md5; all tensors are kept" in caplog.text
    assert "data_name" in records()["Torch.sin.0.forward"]["output"][0]
