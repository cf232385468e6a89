"""`pytest --help` lists the options that most runs need; all others work as well, and `options` lists them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from pytest_msprobe.__main__ import main
from pytest_msprobe.run.settings import CONFIG, DUMP, all_options, by_question, sections
from pytest_msprobe.suites.options import OPTION_QUESTIONS, Option
from pytest_msprobe.suites.registry import SUITES, suites_with

ALL = (DUMP, CONFIG, *all_options())
COMMON = {each.flag for each in ALL if each.is_common}
#: More is not read.
MOST = 25


@pytest.fixture(scope="module")
def helped(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What `pytest --help` prints where an ini file names a dump, and which packages it loads."""
    folder = tmp_path_factory.mktemp("help")
    (folder / "pytest.ini").write_text("[pytest]\nmsprobe_dump = d\nmsprobe_device = torch:cpu\n")
    (folder / "d").mkdir()
    (folder / "d" / "dump.json").write_text("{}")
    code = (
        "import sys, pytest; pytest.main(['--help']); print(sorted({'numpy', 'torch', 'mindspore'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    text, _, loaded = done.stdout.rstrip().rpartition("\n")
    return text, loaded


def test_help_lists_few_options_and_as_many_keys_of_ini_files(helped: tuple[str, str]) -> None:
    options, _, rest = helped[0].partition("[pytest] configuration options")
    assert set(re.findall(r"^  (--msprobe-[a-z0-9-]+)", options, re.MULTILINE)) == COMMON
    assert len(COMMON) <= MOST
    keys = {f"--{key.replace('_', '-')}" for key in re.findall(r"^  (msprobe_\w+)", rest, re.MULTILINE)}
    assert keys == COMMON


def test_help_has_a_heading_for_what_options_are_about(helped: tuple[str, str]) -> None:
    titles = re.findall(
        r"^pytest-msprobe(?: \(python -m pytest_msprobe options: .*?\))?: (.*):$", helped[0], re.MULTILINE
    )
    assert titles == list(OPTION_QUESTIONS.values())


def test_help_loads_no_numpy_and_no_framework(helped: tuple[str, str]) -> None:
    assert helped[1] == "[]"


def test_every_option_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options"]) == 0
    printed = re.findall(r"^    (--msprobe-[a-z0-9-]+|\w+: )", capsys.readouterr().out, re.MULTILINE)
    assert sorted(printed) == sorted("standards: " if each.is_yaml_only else each.flag for each in ALL)


@pytest.mark.parametrize("suite", SUITES)
def test_the_options_of_a_suite_are_listed(capsys: pytest.CaptureFixture[str], suite: str) -> None:
    assert main(["options", suite]) == 0
    text = capsys.readouterr().out
    assert set(re.findall(r"(?<= )--msprobe-[a-z0-9-]+(?=[ =\n])", text)) >= {
        each.flag for each in SUITES[suite].options if not each.is_yaml_only
    }


@pytest.mark.parametrize("name", ["--msprobe-device-ids", "device_ids", "msprobe_device_ids"])
def test_an_option_is_explained_by_any_of_its_names(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["options", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "--msprobe-device-ids=IDS"
    assert lines[-4:] == [
        f"  suites: {', '.join(suites_with('device_ids'))}",
        "  default: all visible",
        "  ini file: msprobe_device_ids",
        "  YAML file of --msprobe-config: device_ids",
    ]


@pytest.mark.parametrize("option", ALL, ids=lambda option: option.name)
def test_every_option_can_be_explained(capsys: pytest.CaptureFixture[str], option: Option) -> None:
    assert main(["options", option.name]) == 0
    assert " ".join(option.help.split()) in " ".join(capsys.readouterr().out.split())


def test_an_unknown_option_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "work-per-device"]) == 2
    assert capsys.readouterr().err.endswith("suite 'work-per-device'; did you mean workers_per_device?\n")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--msprobe-workers-for-device=2", "--msprobe-workers-per-device"),
        ("--msprobe-fuzy", "--msprobe-fuzzy"),
        ("--mspobe-standard=ulp", "--msprobe-standard"),
        ("--msprobe-gradient-md5", "--msprobe-gradient-fail-md5"),  # its name until 0.3.0
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_name(pytester: pytest.Pytester, given: str, meant: str) -> None:
    result = pytester.runpytest(given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    name = given.partition("=")[0]
    result.stderr.fnmatch_lines([f"ERROR: {name}: there is no such option; did you mean {meant}[?]"])


def test_an_option_of_the_projects_own_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--msprobe-outer', action='store_true')")
    pytester.makepyfile("def test(pytestconfig): assert pytestconfig.option.msprobe_outer")
    pytester.runpytest("--msprobe-outer").assert_outcomes(passed=1)


def test_sections_have_every_option_once() -> None:
    found = [each for section in sections() for _, options in section.questions for each in options]
    assert sorted(each.name for each in found) == sorted(each.name for each in ALL)
    assert by_question([]) == ()
