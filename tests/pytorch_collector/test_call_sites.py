"""Stand-ins of projects that call the existing tool run unedited, and write the folders that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "call_sites"


def run(*arguments: object, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def as_msprobe(script: str, folder: Path, argument: object, **variables: str) -> str:
    """Run a stand-in; what it printed."""
    command = ("-m", "msprobe_collector", "as-msprobe", SCRIPTS / script, argument)
    done = run(*command, folder=folder, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def config(folder: Path, **keys: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"task": "statistics", "dump_path": str(folder / "dump"), "step": [0, 1], **keys}))
    return path


def dumps(folder: Path) -> list[str]:
    return sorted(str(file.parent.relative_to(folder)) for file in folder.rglob("dump.json"))


def names(folder: Path) -> list[str]:
    return list(json.loads((folder / "dump.json").read_text())["data"])


@pytest.mark.slow
def test_a_server_has_a_step_for_each_forward(tmp_path):
    as_msprobe("sglang.py", tmp_path, config(tmp_path, level="L0"))
    assert dumps(tmp_path / "dump") == ["step0/proc0", "step1/proc0"]
    assert names(tmp_path / "dump/step0/proc0") == names(tmp_path / "dump/step1/proc0")


@pytest.mark.slow
def test_a_dummy_run_writes_nothing_and_is_not_counted(tmp_path):
    assert "level mix" in as_msprobe("vllm_ascend.py", tmp_path, config(tmp_path, level="mix", step=[0, 1, 2]))
    assert dumps(tmp_path / "dump") == ["step0/rank0", "step1/rank0"]
    # Zeros are what the dummy run computes.
    for number in (0, 1):
        records = json.loads((tmp_path / f"dump/step{number}/rank0/dump.json").read_text())["data"]
        assert records["Functional.linear.0.forward"]["input_args"][0]["Norm"] > 0


@pytest.mark.slow
def test_stages_have_folders_of_their_own(tmp_path):
    as_msprobe("verl.py", tmp_path, tmp_path / "dump")
    assert dumps(tmp_path / "dump") == ["log_prob/step0/proc0", "rollout/step0/proc0", "update/step0/proc0"]
    rollout, update = (names(tmp_path / "dump" / stage / "step0/proc0") for stage in ("rollout", "update"))
    assert not any("backward" in name for name in rollout)
    assert any("backward" in name for name in update)
    assert "Functional.linear.0.forward" in update  # call numbers begin anew in each stage


@pytest.mark.slow
def test_a_wrapped_train_step_of_several_parts(tmp_path):
    as_msprobe("mindspeed.py", tmp_path, config(tmp_path, level="L0"))
    assert dumps(tmp_path / "dump") == ["step0/proc0", "step1/proc0"]
    assert "Module.first.Linear.backward.0" in str(names(tmp_path / "dump/step1/proc0"))


@pytest.mark.slow
def test_a_debugger_that_is_constructed_in_every_step(tmp_path):
    as_msprobe("ms_swift.py", tmp_path, tmp_path / "dump")
    assert dumps(tmp_path / "dump") == ["step0/proc0", "step1/proc0"]
    assert names(tmp_path / "dump/step0/proc0") == names(tmp_path / "dump/step1/proc0")


@pytest.mark.slow
def test_a_folder_of_the_process_and_a_step_that_raises(tmp_path):
    printed = as_msprobe("torchtitan.py", tmp_path, tmp_path / "dump", NAME_OF_PROCESS="7")
    assert "went on after" in printed
    assert dumps(tmp_path / "dump") == ["process_7/step0/proc0", "process_7/step1/proc0"]


@pytest.mark.slow
@pytest.mark.needs("mindspore")
def test_a_callback_of_mindspore(tmp_path):
    as_msprobe("mindformers.py", tmp_path, tmp_path / "dump")
    assert dumps(tmp_path / "dump") == ["step0/proc0", "step1/proc0"]


NAMES = """
import msprobe_collector.as_msprobe
from msprobe.pytorch.dump.debugger.precision_debugger import PrecisionDebugger
import msprobe.pytorch, msprobe_collector.pytorch
assert PrecisionDebugger is msprobe_collector.pytorch.PrecisionDebugger
assert PrecisionDebugger._instance is None
assert not hasattr(msprobe.pytorch, "TrainerMon")
for line in ("from msprobe.pytorch import TrainerMon", "import msprobe.pytorch.monitor.module_hook"):
    try:
        exec(line)
    except ImportError as error:
        print(error)
from msprobe.pytorch import *
print(seed_all.__module__, compare_distributed.__name__)
"""


def test_names_that_are_not_here_say_where_to_look(tmp_path):
    done = run("-c", NAMES, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    where = "docs/migration.md of pytest-msprobe names what stands for it"
    assert done.stdout.splitlines() == [
        f"msprobe_collector has no msprobe.pytorch.TrainerMon; {where}",
        f"msprobe_collector has no msprobe.pytorch.monitor; {where}",
        "msprobe_collector.pytorch.framework compare_distributed",
    ]


def test_the_existing_tool_is_not_replaced_unasked(tmp_path):
    (tmp_path / "msprobe").mkdir()
    (tmp_path / "msprobe/__init__.py").write_text("name = 'the existing tool'")
    script = tmp_path / "train.py"
    script.write_text("import msprobe\nprint(getattr(msprobe, '__all__', 'not ours'))")
    command, path = ("-m", "msprobe_collector", "as-msprobe"), str(tmp_path)
    refused = run(*command, script, folder=tmp_path, PYTHONPATH=path)
    assert refused.returncode == 2
    assert "msprobe is installed here" in refused.stderr.splitlines()[-1]
    assert "--in-its-place" in refused.stderr.splitlines()[-1]
    replaced = run(*command, "--in-its-place", script, folder=tmp_path, PYTHONPATH=path)
    assert (replaced.returncode, replaced.stdout) == (0, "[]\n")
    late = run("-c", "import msprobe, msprobe_collector.as_msprobe", folder=tmp_path, PYTHONPATH=path)
    assert late.stderr.splitlines()[-1].endswith("import msprobe_collector.as_msprobe before")


def test_a_file_is_no_folder_of_a_dump(tmp_path, make_debugger):
    debugger = make_debugger()
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="is a file; name a folder"):
        debugger.service.config.dump_path = tmp_path / "file"
    assert debugger.service.config.dump_path == str(tmp_path / "dump")
