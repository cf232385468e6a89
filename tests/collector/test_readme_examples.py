"""The examples of docs/collecting.md, run as printed, and what they leave."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COLLECTOR = Path(__file__).resolve().parents[2] / "collector"
PROGRAMS = {"python": [sys.executable], "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]}


def printed_commands() -> list[list[str]]:
    page = (COLLECTOR.parent / "docs" / "collecting.md").read_text(encoding="utf-8")
    block = page.partition("<!-- examples -->\n```\n")[2].partition("```")[0]
    return [words for line in block.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of the examples, copied, and what each command printed there."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(
        COLLECTOR / "examples",
        root / "collector" / "examples",
        ignore=shutil.ignore_patterns("*_dump", "*_gradients", "__pycache__", "*.csv"),
    )
    (root / "pytest.ini").write_text("[pytest]\n")  # the examples stand in no repository with settings of its own
    folder, found = root, {}
    for program, *arguments in printed_commands():
        if program == "cd":
            folder = (folder / arguments[0]).resolve()
            continue
        done = subprocess.run(PROGRAMS[program] + arguments, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{program} {arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        found[" ".join([folder.name, program, *arguments])] = done.stdout
    return root / "collector" / "examples", found


def test_every_command_was_run(outputs: tuple[Path, dict[str, str]]) -> None:
    assert list(outputs[1]) == [
        "gpt python train.py",
        "gpt pytest --msprobe-dump=gpt_dump",
        "gpt python train.py --config gradients.json",
        "cnn python train.py",
        "cnn pytest --msprobe-dump=cnn_dump",
        "gpt_torch python train.py",
        "gpt_torch pytest --msprobe-dump=gpt_torch_dump",
    ]


@pytest.mark.parametrize(
    ("command", "passed", "reasons"),
    [
        ("gpt pytest --msprobe-dump=gpt_dump", 150, set()),
        ("gpt_torch pytest --msprobe-dump=gpt_torch_dump", 150, set()),
        ("cnn pytest --msprobe-dump=cnn_dump", 80, {"a jit function: its code is not in the dump"}),
    ],
)
def test_all_that_was_collected_passes(
    outputs: tuple[Path, dict[str, str]], command: str, passed: int, reasons: set[str]
) -> None:
    text = outputs[1][command]
    counts = re.search(r"(\d+) passed, 0 failed", text)
    assert counts is not None, text
    assert int(counts[1]) >= passed
    not_judged = text.partition("\nnot judged:\n")[2].partition("results:")[0]
    assert {line.split(maxsplit=1)[1] for line in not_judged.splitlines() if line.strip()} == reasons


def test_collecting_changes_no_loss(outputs: tuple[Path, dict[str, str]]) -> None:
    collected, watched = (outputs[1][f"gpt python train.py{end}"] for end in ("", " --config gradients.json"))
    losses = re.findall(r"step \d+: loss [\d.]+", collected)
    assert len(losses) == 3
    assert re.findall(r"step \d+: loss [\d.]+", watched) == losses


@pytest.mark.parametrize(("example", "steps"), [("gpt", [0]), ("gpt_torch", [0]), ("cnn", [0, 2])])
def test_the_steps_of_the_configuration_are_there_and_no_others(
    outputs: tuple[Path, dict[str, str]], example: str, steps: list[int]
) -> None:
    dumps = sorted((outputs[0] / example / f"{example}_dump").glob("step*/*/dump.json"))
    assert [dump.parents[1].name for dump in dumps] == [f"step{step}" for step in steps]


def test_gradients_are_there_for_every_step_and_parameter(outputs: tuple[Path, dict[str, str]]) -> None:
    folder = outputs[0] / "gpt" / "gpt_gradients" / "rank0"
    for step in range(3):
        with open(folder / f"grad_summary_{step}.csv", newline="") as file:
            names = [row["param_name"] for row in csv.DictReader(file)]
        assert len(names) == 24
        assert sorted(f"{name}.npy" for name in names) == sorted(
            path.name for path in (folder / f"step{step}").iterdir()
        )
