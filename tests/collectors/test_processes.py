"""Processes of their own: one that is killed, two at once, one that forks, one that only imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from collectors.frameworks import Framework

from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.leaves import flatten

TESTS = Path(__file__).parents[1]

TRAIN = """
import os, signal, sys
debugger = PrecisionDebugger(dump_path={folder!r}, level={level!r}, task="tensor")
training = Training()
debugger.start(training.net, rank_id={rank})
training.step()
{end}
"""


def train(
    framework: Framework, folder: Path, *, end: str, rank: int | None = None, level: str = "mix", stdin=None
) -> subprocess.Popen[str]:
    script = framework.script + TRAIN.format(folder=str(folder), level=level, rank=rank, end=end)
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        text=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_a_killed_training_leaves_what_it_had_recorded(framework, tmp_path):
    process = train(framework, tmp_path, end="os.kill(os.getpid(), signal.SIGKILL)")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, output
    (folder,) = (tmp_path / "step0").iterdir()
    assert folder.name == "proc0"
    dump = Dump(folder / "dump.json")
    assert dump.problem == ""
    # Records of PyTorch reach the disk in groups of 64 values.
    assert len(dump.record_names) >= framework.records["mix"] - (1 if framework.name == "mindspore" else 40)
    assert dump.backward(f"{framework.call}.0") is not None
    value = dump.forward(f"{framework.call}.0").arguments[0]
    assert (folder / "dump_tensor_data" / value.data_name).exists()


@pytest.mark.parametrize("cut", [1, 2, 5, 100, 1000])
def test_a_file_without_its_end_is_read_up_to_there(tmp_path, cut):
    whole = TESTS / "dumps" / "gpt_tiny_statistics" / "step0" / "proc0" / "dump.json"
    ours = {"task": "tensor", "level": "L1", "framework": "mindspore", "dump_data_dir": None}
    records = json.loads(whole.read_text())["data"]
    head = json.dumps(ours)[:-1] + ',\n"data": {\n'
    entries = ",\n".join(f"{json.dumps(name)}: {json.dumps(record)}" for name, record in records.items())
    path = tmp_path / "dump.json"
    path.write_text((head + entries + "\n}\n}\n")[: -cut - 3])
    dump = Dump(path)
    assert "was truncated while it was written" in dump.problem
    assert len(dump.record_names) in range(len(records) - 4, len(records))
    assert dump.forward("Mint.square.0") is not None


@pytest.mark.slow
def test_two_processes_write_beside_each_other(framework, tmp_path):
    end = "debugger.stop(); debugger.step()"
    processes = [train(framework, tmp_path, end=end, rank=rank, level="L1") for rank in (0, 1)]
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    assert sorted(path.name for path in (tmp_path / "step0").iterdir()) == ["rank0", "rank1"]
    first, second = (Dump(tmp_path / "step0" / rank / "dump.json") for rank in ("rank0", "rank1"))
    assert first.record_names == second.record_names
    assert len(first.record_names) == framework.records["L1"]


@pytest.mark.slow
def test_a_second_process_of_one_rank_writes_beside_the_first(framework, tmp_path):
    wait = "sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.readline()"
    waiting = f"{wait}; debugger.stop(); debugger.step()"
    first = train(framework, tmp_path, end=waiting, rank=0, level="L1", stdin=subprocess.PIPE)
    for line in first.stdout:
        if line == "ready\n":
            break
    second = train(framework, tmp_path, end="debugger.stop(); debugger.step()", rank=0, level="L1")
    second_output, _ = second.communicate(timeout=120)
    first_output, _ = first.communicate("\n", timeout=120)
    assert (first.returncode, second.returncode) == (0, 0), first_output + second_output
    beside = f"proc{second.pid}"
    line = f"step0/rank0 is being written by another process; this one writes to {beside} beside it"
    assert second_output.count(line) == 1
    assert "another process" not in first_output
    dumps = [Dump(tmp_path / "step0" / name / "dump.json") for name in ("rank0", beside)]
    assert [dump.problem for dump in dumps] == ["", ""]
    assert dumps[0].record_names == dumps[1].record_names


@pytest.mark.slow
def test_runs_without_ranks_write_to_one_folder_and_at_a_time_beside_each_other(framework, tmp_path):
    end = "debugger.stop(); debugger.step()"
    output, _ = train(framework, tmp_path, end=end, level="mix").communicate(timeout=120)
    assert [path.name for path in (tmp_path / "step0").iterdir()] == ["proc0"], output
    wait = "sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.readline()"
    first = train(framework, tmp_path, end=f"{wait}; {end}", level="L1", stdin=subprocess.PIPE)
    for line in first.stdout:
        if line == "ready\n":
            break
    second = train(framework, tmp_path, end=end, level="L1")
    second_output, _ = second.communicate(timeout=120)
    first_output, _ = first.communicate("\n", timeout=120)
    assert "the earlier dump in step0/proc0 was replaced" in first_output, second_output
    assert sorted(path.name for path in (tmp_path / "step0").iterdir()) == sorted(["proc0", f"proc{second.pid}"])
    dumps = [Dump(path / "dump.json") for path in (tmp_path / "step0").iterdir()]
    assert [len(dump.record_names) for dump in dumps] == [framework.records["L1"]] * 2


@pytest.mark.slow
def test_a_second_run_replaces_what_stands_in_its_folders_and_says_what_it_keeps(framework, tmp_path):
    end = "debugger.stop(); debugger.step()"
    for level, more in (("mix", "; debugger.start(training.net); training.step(); debugger.stop()"), ("L1", "")):
        process = train(framework, tmp_path, end=end + more, rank=0, level=level)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    folder = tmp_path / "step0" / "rank0"
    dump = Dump(folder / "dump.json")
    assert {path.name for path in (folder / "dump_tensor_data").iterdir()} == {
        value.data_name for name in dump.record_names for value in flatten(dump.record(name)) if value.data_name
    }
    assert f"{framework.records['L1']} records of step 0, rank0, are in" in output
    assert f"check them with: pytest --msprobe-dump={tmp_path}" in output
    assert "the earlier dump in step0/rank0 was replaced" in output
    assert "dumps of an earlier run are kept in step1/rank0" in output


def test_a_forked_child_writes_nothing(framework, tmp_path):
    end = """
import types
module = types.SimpleNamespace(work=lambda number: number)
debugger.register_custom_api(module, "work", "Custom")
child = os.fork()
if child == 0:
    try:
        module.work(1)
    finally:
        os._exit(0)
os.waitpid(child, 0)
module.work(2)
debugger.stop(); debugger.step()
"""
    process = train(framework, tmp_path, end=end, rank=0, level="L1")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert [path.name for path in (tmp_path / "step0").iterdir()] == ["rank0"]
    names = Dump(tmp_path / "step0" / "rank0" / "dump.json").record_names
    assert names[framework.records["L1"] :] == ["Custom.work.0.forward"]
