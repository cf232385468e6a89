"""Disks that refuse: training continues, the files stay readable, and what is missing is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from collector.small_gpt import Training
from mindspore import Tensor, mint

from msprobe_collector import ConfigurationError, PrecisionDebugger
from msprobe_collector.dump_format import Dump, Place
from msprobe_collector.dump_format.leaves import flatten

TESTS = Path(__file__).parents[1]

TRAIN_WITH_LITTLE_ROOM = """
import resource, sys
import mindspore as ms
from collector.small_gpt import Training
from msprobe_collector import PrecisionDebugger
ms.runtime.launch_blocking()
training = Training()
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix", task="tensor")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
with debugger.collect(training.net, rank_id=0):
    collected = training.step()
assert all((one == other).all() for one, other in zip(collected, training.step()))
"""


def test_a_disk_without_room_ends_no_training_and_the_files_stay_whole(tmp_path):
    command = [sys.executable, "-c", TRAIN_WITH_LITTLE_ROOM, str(tmp_path / "dump")]
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert "File too large" in result.stderr
    assert "records are missing from the dump: they could not be written" in result.stderr
    dump = Dump(tmp_path / "dump" / "step0" / "rank0" / "dump.json")
    assert dump.problem == ""
    assert 10 < len(dump.record_names) < 235
    assert named_files(dump) <= {path.name for path in (dump.path.parent / "dump_tensor_data").iterdir()}
    assert dump.forward("Mint.square.0") is not None


def named_files(dump):
    """Names of the tensor files of all records, each of which can be loaded."""
    leaves = [leaf for name in dump.record_names for leaf in flatten(dump.record(name))]
    place = Place(str(dump.path), "", "")
    return {leaf.data_name for leaf in leaves if leaf.data_name and dump.tensors.load(leaf.tensor, place) is not None}


TRAIN_ON_A_DISK_OF = """
import errno, os, sys
from collector.small_gpt import Training
import mindspore as ms
from msprobe_collector import PrecisionDebugger
ms.runtime.launch_blocking()
training = Training()
left = int(sys.argv[2])

def limited(original):
    def write(descriptor, content, *rest):
        global left
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = original(descriptor, content[:left], *rest)
        left -= written
        return written
    return write

debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1", task="tensor")
os.write, os.pwrite = limited(os.write), limited(os.pwrite)
with debugger.collect(training.net, rank_id=0):
    training.step()
"""


@pytest.mark.parametrize("size", [0, 100, 1_000, 20_000, 100_000])
def test_a_full_disk_leaves_no_empty_file_and_no_record_of_a_tensor_that_is_not_whole(tmp_path, size):
    command = [sys.executable, "-c", TRAIN_ON_A_DISK_OF, str(tmp_path / "dump"), str(size)]
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert "No space left on device" in result.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.stat().st_size for path in files)
    for path in files:
        if path.name == "dump.json":
            dump = Dump(path)
            assert dump.problem == ""
            named_files(dump)
        else:
            assert path.suffix in (".npy", ".json", ".log")


def test_a_step_that_cannot_be_written_is_left_out_and_the_next_is_collected(make_debugger, caplog, records, tmp_path):
    debugger = make_debugger(level="mix")
    training = Training()
    (tmp_path / "dump" / "step0").write_text("in the way")
    for _ in range(2):
        with debugger.collect(training.net, rank_id=0):
            training.step()
    assert "nothing is collected in step 0" in caplog.text
    assert len(records(1)) == 236


def test_a_folder_that_vanishes_is_no_fault_of_the_training(make_debugger, step_folder, caplog):
    debugger = make_debugger(task="tensor")
    debugger.start(rank_id=0)
    mint.square(Tensor([1.0]))
    (step_folder() / "dump_tensor_data").rename(step_folder() / "elsewhere")
    assert mint.square(Tensor([3.0])).asnumpy() == 9.0
    debugger.stop()
    assert "No such file or directory" in caplog.text
    assert Dump(step_folder() / "dump.json").record_names == ["Mint.square.0.forward", "Mint.square.1.forward"]


@pytest.mark.parametrize(
    ("path", "message"),
    [("file", "is a file"), ("file/below", "cannot be created"), ("/proc/none", "cannot be created")],
)
def test_a_dump_path_that_cannot_be_written_is_refused(tmp_path, path, message):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=message):
        PrecisionDebugger(dump_path=str(tmp_path / path))
