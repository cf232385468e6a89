"""`python -m pytest_msprobe` itself, whatever its commands are."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from pytest_msprobe.__main__ import main


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    listed = capsys.readouterr().out
    assert listed.startswith("usage: python -m pytest_msprobe [-h] COMMAND ...")
    assert "\n    diagnose  " in listed
    assert "\n    options  " in listed


@pytest.mark.parametrize(
    ("given", "hint"), [("diagnos", "did you mean diagnose?"), ("xyz", "known are diagnose, conftest, ")]
)
def test_an_unknown_command_is_refused_in_one_line(given: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([given, "dump"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"python -m pytest_msprobe: there is no command {given!r}; {hint}")
    assert (said.out, said.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("arguments", [[], ["options"], ["diagnose", "no_such_dump"]], ids=" ".join)
def test_a_reader_that_has_ended_is_no_error(arguments: list[str]) -> None:
    """As with `| head -1`."""
    command = [sys.executable, "-m", "pytest_msprobe", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait() == 128 + signal.SIGPIPE
