"""Old names of options: they work everywhere, with one warning, and never beside the new ones."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from packaging.version import Version
from slow_parameters import WITH_WORKERS

import pytest_msprobe
from pytest_msprobe.run.old_names import GONE_IN, OLD_NAMES, OldName
from pytest_msprobe.run.settings import all_options, read_settings
from pytest_msprobe.suites.registry import suites_with

A = np.arange(6, dtype=np.float32).reshape(2, 3)
#: A text for each old name, and the value of the new option that it stands for.
TEXTS = {
    "seeds": ("3", 3),
    "devices": ("4-5", ("4", "5")),
    "repeat": ("7", 7),
    "strict": ("saturation", frozenset({"saturation"})),
    "error_data_dir": ("kept", Path("kept")),
    "save_error_data": ("true", True),
    "overflow_strict": ("true", True),
    "gradient_md5": ("yes", True),
    "gradient_zero": ("on", True),
}
by_name = pytest.mark.parametrize("renamed", OLD_NAMES, ids=lambda renamed: renamed.old)


def write_dump(folder: Path) -> None:
    DumpBuilder(folder).call("Mint.neg.0", [A], [A]).write()


def test_old_names_are_not_names_and_lead_to_names() -> None:
    names = {option.name for option in all_options()}
    assert not names & {renamed.old for renamed in OLD_NAMES}
    assert {renamed.new for renamed in OLD_NAMES} <= names


def test_the_release_in_which_they_go_is_not_there_yet() -> None:
    """When it comes, `run/old_names.py` goes, with this file."""
    assert Version(pytest_msprobe.__version__) < Version(GONE_IN)


@by_name
@pytest.mark.parametrize("place", ["command line", "ini", "YAML", "conftest"])
def test_an_old_name_means_the_new_one(pytester: pytest.Pytester, renamed: OldName, place: str) -> None:
    text, value = TEXTS[renamed.old]
    arguments = [f"--msprobe-suite={suites_with(renamed.new)[0]}"]
    if place == "command line":
        arguments.append(f"--msprobe-{renamed.old.replace('_', '-')}" + ("" if renamed.is_flag else f"={text}"))
    elif place == "ini":
        pytester.makeini(f"[pytest]\nmsprobe_{renamed.old} = {text}\n")
    elif place == "YAML":
        (pytester.path / "c.yaml").write_text(f"{renamed.old}: {text}\n")
        arguments.append("--msprobe-config=c.yaml")
    config = pytester.parseconfig(*arguments)
    if place == "conftest":
        setattr(config.option, f"msprobe_{renamed.old}", text)
    found = [read_settings(config).values[renamed.new] for _ in range(2)]
    assert found == [Path.cwd() / value if isinstance(value, Path) else value] * 2


@WITH_WORKERS
def test_one_warning_names_all_new_names_and_the_release(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    write_dump(pytester.path)
    pytester.makeini("[pytest]\nmsprobe_save_error_data = true\n")
    (pytester.path / "c.yaml").write_text("strict: subnormals\nstandard: fused\n")
    result = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-config=c.yaml", "--msprobe-seeds=2", *workers)
    result.assert_outcomes(failed=1, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*PytestDeprecationWarning: --msprobe-seeds is now --msprobe-draws; --msprobe-config=c.yaml: key 'strict' "
            "is now key 'fail_on'; ini option msprobe_save_error_data is now ini option msprobe_error_data; old names "
            f"go in pytest-msprobe {GONE_IN}*"
        ]
    )
    assert (pytester.path / "error_data" / "dump.json").is_file()


def test_new_names_warn_of_nothing(pytester: pytest.Pytester) -> None:
    write_dump(pytester.path)
    pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-draws=2").assert_outcomes(failed=1, warnings=0)


def test_of_two_old_names_for_one_option_the_folder_counts(pytester: pytest.Pytester) -> None:
    write_dump(pytester.path)
    old = ("--msprobe-save-error-data", "--msprobe-error-data-dir=kept")
    result = pytester.runpytest("--msprobe-dump=dump.json", *old)
    result.assert_outcomes(failed=1, warnings=1)
    result.stdout.fnmatch_lines(["*--msprobe-save-error-data is now --msprobe-error-data*"])
    assert (pytester.path / "kept" / "dump.json").is_file()
    assert not (pytester.path / "error_data").exists()


#: Arguments, ini text, content of the YAML file, and what the one line of the refusal says.
REFUSED = {
    "both names": (
        ("--msprobe-seeds=2", "--msprobe-draws=2"),
        "",
        "",
        "--msprobe-seeds: is the old name of --msprobe-draws, which is given as well; leave it out",
    ),
    "both in YAML": ((), "", "seeds: 2\ndraws: 3", "--msprobe-config=c.yaml: key 'seeds': is the old name of *"),
    "both in ini": ((), "msprobe_seeds = 2\nmsprobe_draws = 2", "", "ini option msprobe_seeds: is the old name of *"),
    "a wrong value": (("--msprobe-devices=x", "-n1"), "", "", "--msprobe-devices: 'x' is not a list of device ids*"),
    "a wrong value in YAML": ((), "", "seeds: none", "--msprobe-config=c.yaml: key 'seeds': 'none' is not a number *"),
    "a wrong value in ini": ((), "msprobe_save_error_data = x", "", "ini option msprobe_save_error_data: 'x' is nei*"),
    "another suite": (("--msprobe-gradient-md5",), "", "", "--msprobe-gradient-md5: has no effect in the suite pre*"),
    "warnings are errors": (("-Werror", "--msprobe-seeds=2"), "", "", "--msprobe-seeds is now --msprobe-draws; *"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named_as_it_was_given(pytester: pytest.Pytester, name: str) -> None:
    arguments, ini, content, text = REFUSED[name]
    write_dump(pytester.path)
    pytester.makeini(f"[pytest]\n{ini}\n")
    (pytester.path / "c.yaml").write_text(content)
    result = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-config=c.yaml", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {text}"])


def test_help_lists_new_names_only(pytester: pytest.Pytester) -> None:
    words = set(re.split(r"[\s=]", pytester.runpytest("--help").stdout.str()))
    assert not words & {f"--msprobe-{renamed.old.replace('_', '-')}" for renamed in OLD_NAMES}
    assert not words & {f"msprobe_{renamed.old}" for renamed in OLD_NAMES}
