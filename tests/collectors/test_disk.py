"""Disks that refuse: training continues, the files stay readable, and what is missing is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe_collector import ConfigurationError
from msprobe_collector.dump_format import Dump, FieldPath
from msprobe_collector.dump_format.leaves import flatten

TESTS = Path(__file__).parents[1]

TRAIN_WITH_LITTLE_ROOM = """
import resource, sys
training = Training()
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix", task="tensor")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
with debugger.collect(training.net, rank_id=0):
    collected = training.step()
assert all((one == other).all() for one, other in zip(collected, training.step()))
"""


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The finished script, which ended without an error."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    return result


@pytest.mark.slow
def test_a_disk_without_room_ends_no_training_and_the_files_stay_whole(framework, tmp_path):
    result = run(framework.script + TRAIN_WITH_LITTLE_ROOM, tmp_path / "dump")
    assert "File too large" in result.stderr
    assert "records are missing from the dump: they could not be written" in result.stderr
    dump = Dump(tmp_path / "dump" / "step0" / "rank0" / "dump.json")
    assert dump.problem == ""
    assert 10 < len(dump.record_names) < framework.records["mix"]
    assert named_files(dump) <= {path.name for path in (dump.path.parent / "dump_tensor_data").iterdir()}
    assert dump.forward(f"{framework.call}.0") is not None


def named_files(dump):
    """Names of the tensor files of all records, each of which can be loaded."""
    leaves = [leaf for name in dump.record_names for leaf in flatten(dump.record(name))]
    place = FieldPath(str(dump.path), "", "")
    return {leaf.data_name for leaf in leaves if leaf.data_name and dump.tensors.load(leaf.tensor, place) is not None}


TRAIN_ON_A_DISK_OF = """
import errno, os, sys
training = Training()
left = int(sys.argv[2])

def limited(original, cut=lambda content, size: content[:size]):
    def write(descriptor, content, *rest):
        global left
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = original(descriptor, cut(content, left), *rest)
        left -= written
        return written
    return write

def cut_parts(parts, size):
    cut = []
    for part in parts:
        cut.append(bytes(part)[:size])
        size -= len(cut[-1])
    return cut

debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1", task="tensor")
os.write, os.pwrite, os.writev = limited(os.write), limited(os.pwrite), limited(os.writev, cut_parts)
with debugger.collect(training.net, rank_id=0):
    training.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 100, 1_000, 20_000, 100_000])
def test_a_full_disk_leaves_no_empty_file_and_no_record_of_a_tensor_that_is_not_whole(framework, tmp_path, size):
    result = run(framework.script + TRAIN_ON_A_DISK_OF, tmp_path / "dump", size)
    assert "No space left on device" in result.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.stat().st_size for path in files)
    for path in files:
        if path.name == "dump.json":
            dump = Dump(path)
            assert dump.problem == ""
            named_files(dump)
        else:
            assert path.suffix in (framework.suffix, ".json", ".log")


def test_a_step_that_cannot_be_written_is_left_out_and_the_next_is_collected(
    framework, make_debugger, caplog, records, tmp_path
):
    debugger = make_debugger(level="mix")
    training = framework.make_training()
    (tmp_path / "dump" / "step0").write_text("in the way")
    for _ in range(2):
        with debugger.collect(training.net, rank_id=0):
            training.step()
    assert "nothing is collected in step 0" in caplog.text
    assert len(records(1)) == framework.records["mix"]


def test_a_folder_that_vanishes_is_no_fault_of_the_training(framework, make_debugger, step_folder, caplog):
    debugger = make_debugger(task="tensor")
    debugger.start(rank_id=0)
    framework.square(framework.tensor([1.0]))
    (step_folder() / "dump_tensor_data").rename(step_folder() / "elsewhere")
    assert framework.array(framework.square(framework.tensor([3.0]))) == 9.0
    debugger.stop()
    assert "No such file or directory" in caplog.text
    names = [f"{framework.call}.{number}.forward" for number in (0, 1)]
    assert Dump(step_folder() / "dump.json").record_names == names


@pytest.mark.parametrize(
    ("path", "message"),
    [("file", "is a file"), ("file/below", "cannot be created"), ("/proc/none", "cannot be created")],
)
def test_a_dump_path_that_cannot_be_written_is_refused(debugger_type, tmp_path, path, message):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=message):
        debugger_type(dump_path=str(tmp_path / path))
