"""Every suite says its answer in one form, also of a run that cannot begin, or whose input cannot be read."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from contract_runs import Run, Workspace

from pytest_msprobe.answers.answer import MOST_HEADLINE


def test_the_answer_names_a_failed_item_and_says_where_it_is(plain: Run) -> None:
    found = plain.answer
    assert found["outcome"] == "wrong"
    assert found["findings"][0]["id"] in plain.ids["failed"]
    assert found["headline"].startswith("Wrong: ")
    assert len(found["headline"]) <= MOST_HEADLINE
    assert found["suite"] == plain.rows[0]["suite"]
    assert found["next"], "a fault without a next step"


@pytest.mark.one_suite
def test_each_command_that_is_named_next_judges_something(plain: Run, workspace: Workspace, tmp_path: Path) -> None:
    commands = [each["arguments"] for each in plain.answer["next"] if each["arguments"]]
    assert commands or plain.answer["suite"] == "gradients", "gradients of a step are collected again"
    folder = tmp_path / "copy"  # these runs write files, and other tests read those of the plain one
    shutil.copytree(plain.folder, folder)
    for command in commands:
        command = [argument.replace(str(plain.folder), str(folder)) for argument in command]
        ended = workspace.run_command(command, folder)
        assert ended.returncode in (0, 1), f"{command}: {ended.stdout}{ended.stderr}"
        if command[0] == "pytest":
            (counts,) = re.findall(r"^(\d+) passed, (\d+) failed, .*", ended.stdout, re.MULTILINE)
            assert any(map(int, counts)), ended.stdout
            assert f"next: {shlex.join(command)}\n" not in ended.stdout, "it names itself"


@pytest.mark.one_suite
def test_input_that_cannot_be_read_is_said(workspace: Workspace, plain: Run) -> None:
    """The files of one dump, or of one step of gradients, are torn: the others are judged."""
    torn = workspace.folder / Path(plain.rows[-1]["dump"]).relative_to(plain.folder)
    torn.write_text("{ torn", encoding="utf-8")
    (run,) = workspace.run_all([()])
    assert run.exit_code != pytest.ExitCode.OK
    found = run.answer
    assert found["outcome"] != "right"
    told = [each["text"] for each in found["open"]] + [each["detail"] for each in found["findings"]]
    assert any(torn.name in line for line in told), told


@pytest.mark.one_suite
def test_a_run_that_cannot_begin_says_why(workspace: Workspace) -> None:
    """The answer of an earlier run does not stay."""
    option = f"{workspace.sample.arguments[0].partition('=')[0]}=nowhere"
    answer = f"--msprobe-diagnosis={workspace.folder}/out1/diagnosis.json"
    first, refused = workspace.run_all([(), (answer, option)])
    assert first.exit_code == pytest.ExitCode.TESTS_FAILED
    assert refused.exit_code == pytest.ExitCode.USAGE_ERROR
    assert first.answer["outcome"] == "nothing judged"
    # A headline of 90 characters has no room for a long path; the reason behind it has.
    assert any("nowhere" in each["reason"] for each in first.answer["open"])


@pytest.mark.one_suite
def test_a_file_of_somebody_else_stays(workspace: Workspace) -> None:
    notes = workspace.folder / "notes.json"
    notes.write_text("[1, 2]", encoding="utf-8")
    (run,) = workspace.run_all([(f"--msprobe-diagnosis={notes}",)])
    assert run.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "notes.json" in run.text
    assert notes.read_text(encoding="utf-8") == "[1, 2]"
