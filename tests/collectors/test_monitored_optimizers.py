"""The gradient monitor with an optimizer of each framework: files, selection, full disks, kills, folders in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from monitored_runs import check_two_steps, configuration, signs, table

#: Parameters and their gradients.
VALUES = {"a": [1.0, 2.0, 3.0], "b": [[4.0]]}
GRADIENTS = {"a": [0.5, -2.0, 0.0], "b": [[3.0]]}


@pytest.fixture
def make_monitor(framework, tmp_path):
    """make_monitor(**keys) -> a monitor that writes to tmp_path / "out"."""
    framework.prepare()
    return lambda **keys: framework.monitor_type(configuration(tmp_path, **keys))


def test_each_step_of_an_optimizer_is_a_file(framework, make_monitor, tmp_path):
    optimizer, update = framework.optimizer(VALUES)
    monitor = make_monitor()
    monitor.monitor(optimizer)
    for _ in range(2):
        update(GRADIENTS)
    monitor.stop()
    update(GRADIENTS)
    check_two_steps(tmp_path)


def test_parameters_move_as_without_the_monitor(framework, make_monitor):
    def train(*, is_watched: bool) -> list[np.ndarray]:
        optimizer, update = framework.optimizer(VALUES)
        monitor = make_monitor(grad_level="L2")
        if is_watched:
            monitor.monitor(optimizer)
        moved = [update(GRADIENTS) for _ in range(3)][-1]
        monitor.stop()
        return moved

    for one, other in zip(train(is_watched=True), train(is_watched=False), strict=True):
        assert one.tobytes() == other.tobytes()


def test_level_0_has_a_checksum_and_no_signs(framework, make_monitor, tmp_path):
    optimizer, update = framework.optimizer(VALUES)
    make_monitor(grad_level="L0").monitor(optimizer)
    update({"a": [1.0, 2, 3], "b": [[3.0]]})
    assert table(tmp_path, 0)[0]["MD5"] == "6e55f044605a4991f15fd4505d83faf4"
    assert list((tmp_path / "out").rglob("*.npy")) == []


def test_steps_ranks_and_parameters_are_those_asked_for(framework, make_monitor, tmp_path, caplog):
    optimizer, update = framework.optimizer(VALUES)
    kind = type(optimizer)
    make_monitor(step=[1, "3-4"], param_list=["b", "missing"]).monitor(optimizer)
    assert "the optimizer has no parameter missing; it has a, b" in caplog.text
    for _ in range(7):
        update(GRADIENTS)
    files = sorted(path.name for path in (tmp_path / "out" / "rank0").glob("*.csv"))
    assert files == ["grad_summary_1.csv", "grad_summary_3.csv", "grad_summary_4.csv"]
    assert [row["param_name"] for row in table(tmp_path, 3)] == ["b"]
    assert type(optimizer) is kind, "past the last step the optimizer is left alone"


def test_another_rank_is_not_watched(framework, make_monitor, tmp_path):
    optimizer, update = framework.optimizer(VALUES)
    make_monitor(rank=[1]).monitor(optimizer)
    update(GRADIENTS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_dtypes(framework, make_monitor, tmp_path, dtype):
    make_monitor().observe({"w": framework.tensor([1.5, -0.25, np.nan, np.inf], dtype)})
    (row,) = table(tmp_path, 0)
    assert (row["nan"], row["inf"], row["max"]) == ("1", "1", "nan")
    assert signs(tmp_path, 0, "w").tolist() == [True, False, False, True]


def test_functional_loops_name_their_gradients(framework, make_monitor, tmp_path):
    monitor = make_monitor()
    for _ in range(2):
        monitor.observe((name, framework.tensor(GRADIENTS[name])) for name in "ab")
    assert [row["param_name"] for row in table(tmp_path, 1)] == ["a", "b"]


def test_a_full_disk_does_not_stop_training(framework, make_monitor, tmp_path, caplog):
    optimizer, update = framework.optimizer(VALUES)
    make_monitor().monitor(optimizer)
    for step in range(3):
        (tmp_path / "out" / "rank0").mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / "rank0" / f"step{step}").touch()  # a file where the folder should come
        update(GRADIENTS)
    assert caplog.text.count("FileExistsError") == 1


KILLED = """
import os, signal, sys
from collectors.frameworks import FRAMEWORKS
from msprobe_collector.configuration.reader import read_configuration
framework = next(item for item in FRAMEWORKS if item.name == sys.argv[2])
optimizer, update = framework.optimizer({name: [1.0, 2.0] for name in "abc"})
framework.monitor_type(read_configuration(sys.argv[1])).monitor(optimizer)
gradients = {name: [1.0, -1.0] for name in "abc"}
update(gradients)
os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
update(gradients)
"""


def run(script: str, folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, str(folder / "config.json"), name]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_killed_run_leaves_whole_steps_only(framework, tmp_path):
    configuration(tmp_path)
    done = run(KILLED, tmp_path, framework.name)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.name for path in (tmp_path / "out" / "rank0").glob("*.csv")] == ["grad_summary_0.csv"]
    assert len(table(tmp_path, 0)) == 3
    assert list((tmp_path / "out" / "rank0" / "step1").glob("*.npy")) == []


ANOTHER_PROCESS = """
import sys
from collectors.frameworks import FRAMEWORKS
from msprobe_collector.configuration.reader import read_configuration
framework = next(item for item in FRAMEWORKS if item.name == sys.argv[2])
framework.monitor_type(read_configuration(sys.argv[1])).observe({"w": framework.tensor([7.0])})
"""


def test_two_processes_never_write_into_one_folder(framework, make_monitor, tmp_path):
    monitor = make_monitor()
    monitor.observe({"w": framework.tensor(GRADIENTS["a"])})
    done = run(ANOTHER_PROCESS, tmp_path, framework.name)
    assert "rank0 is being written by another process or monitor" in done.stderr
    monitor.observe({"w": framework.tensor(GRADIENTS["a"])})
    (other,) = (tmp_path / "out").glob("proc*")
    assert [path.name for path in other.glob("*.csv")] == ["grad_summary_0.csv"]
    assert [len(table(tmp_path, step)) for step in (0, 1)] == [1, 1]
    monitor.stop()
    assert run(ANOTHER_PROCESS, tmp_path, framework.name).stderr == ""
    assert table(tmp_path, 0)[0]["max"] == "7.0"


def test_two_monitors_of_one_process_are_kept_apart(framework, make_monitor, tmp_path):
    first, second, third = (make_monitor() for _ in range(3))
    one, other = (framework.tensor(GRADIENTS[name]) for name in "ab")
    first.observe({"w": one})
    second.observe({"v": other})
    third.observe({"u": other})  # its folder is in use as well: nothing is written, and training goes on
    assert table(tmp_path, 0)[0]["param_name"] == "w"
    assert len([*(tmp_path / "out").rglob("*.csv")]) == 2
    for monitor in (first, second):
        monitor.stop()
    third.observe({"u": other})
    assert table(tmp_path, 1)[0]["param_name"] == "u"
