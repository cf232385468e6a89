"""The package of docs/new_suite.md keeps its promise, and packages that are broken stand in nobody's way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import new_suite
import numpy as np
import pytest
from dump_builder import DumpBuilder
from new_suite import BLOCKS, ROOT
from page_reader import page_content

X = np.linspace(-2, 2, 64, dtype=np.float32)
PATHS = ("PYTHONPATH", "PYTEST_ADDOPTS")

#: Packages that cannot be used: their entry points, and why not.
BROKEN = {
    "broken-import": ('[project.entry-points."pytest_msprobe.suites"]\nlost = "not_there:ENTRY"\n', "No module named"),
    "broken-name": (
        '[project.entry-points."pytest_msprobe.suites"]\nprecheck = "json:dumps"\n',
        "it is of the type function, and not a SuiteEntry",
    ),
    "broken-command": (
        '[project.entry-points."pytest_msprobe.commands"]\ndiagnose = "json:dumps"\n',
        "there is a command of this name already",
    ),
}
SUITE_LINES, COMMAND_LINE = [*BROKEN][:2], [*BROKEN][2]


class Installed:
    """A folder with a dump, and what runs there with the packages in `site`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.site = folder, folder / "site"
        self.dump = DumpBuilder(folder / "dump").call("Mint.neg.0", [X], [-X]).write()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
        environment["PYTHONPATH"] = os.pathsep.join([str(self.site), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("pytest", "-p", "no:hypothesispytest", *arguments)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The package of the page, and broken ones beside it."""
    found = Installed(tmp_path_factory.mktemp("installed"))
    new_suite.install(found.site)
    for package, (groups, _) in BROKEN.items():
        new_suite.write_metadata(found.site, f'name = "{package}"\n{groups}')
    return found


def test_the_suite_is_chosen_by_name_and_claims_no_rounding(installed: Installed) -> None:
    run = installed.pytest(
        f"--msprobe-dump={installed.dump}", "--msprobe-suite=magnitude", "--msprobe-jsonl=rows.jsonl"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Right: 1 of 1 record passed" in run.stdout.splitlines()
    for package, (_, why) in BROKEN.items():
        lines = [line for line in run.stdout.splitlines() if line.startswith(f"msprobe: {package}: its entry point")]
        assert len(lines) == (package in SUITE_LINES), run.stdout
        assert all(why in line for line in lines)
    made = installed.run("pytest_msprobe", "page", "rows.jsonl", "-o", "page.html")
    assert made.returncode == 0, made.stderr
    (section,) = page_content(installed.folder / "page.html")["sections"]
    assert (section["suite"], section["title"]) == ("magnitude", "Large values")
    assert (section["diagnosis"]["outcome"], section["diagnosis"]["measure"]["kind"]) == ("right", "passed")


def test_its_options_work_and_the_other_suites_too(installed: Installed) -> None:
    arguments = ("--msprobe-suite=magnitude", "--msprobe-largest=1.5", "-n1")
    run = installed.pytest(f"--msprobe-dump={installed.dump}", *arguments)
    assert run.returncode == 1
    assert "input.0: the maximum 2 is above 1.5" in run.stdout
    other = installed.pytest(f"--msprobe-dump={installed.dump}", "--msprobe-suite=overflow")
    assert other.returncode == 0, other.stdout
    unknown = installed.pytest(f"--msprobe-dump={installed.dump}", "--msprobe-suite=lost")
    assert unknown.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--msprobe-suite: broken-import: its entry point 'lost'" in unknown.stderr


def test_a_project_without_dumps_reads_nothing_of_broken_packages(installed: Installed) -> None:
    (installed.folder / "test_own.py").write_text("def test_own(): pass\n")
    run = installed.pytest("-q", "test_own.py")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "entry point" not in run.stdout + run.stderr


def test_commands_name_broken_packages_and_run(installed: Installed) -> None:
    run = installed.run("pytest_msprobe", "options", "magnitude")
    assert run.returncode == 0
    assert run.stdout.startswith("magnitude: which values are too large?\n")
    assert "--msprobe-largest=X" in run.stdout
    for package, (_, why) in BROKEN.items():
        (line,) = (line for line in run.stderr.splitlines() if line.startswith(f"{package}: "))
        assert why in line


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of this repository with the suite in it, as the page says."""
    folder = tmp_path / "repository"
    left_out = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=left_out, symlinks=True)
    sources = tmp_path / "sources"
    new_suite.write_package(sources)
    package = "pytest_msprobe_magnitude"
    shutil.copytree(sources / package, folder / "extensions" / "magnitude" / package)
    new_suite.apply_changes(folder, BLOCKS)
    return folder


@pytest.mark.slow
def test_the_suite_stands_in_this_repository_with_all_quick_checks_green(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    new_suite.write_metadata(site, (repository / "pyproject.toml").read_text(encoding="utf-8"))
    packages = [repository, repository / "collector", *(repository / "extensions").iterdir()]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [site, *packages])))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    for command in ([".ci/quick"], [sys.executable, "-m", "pytest", "-q", "tests/contract/test_contract_reports.py"]):
        run = subprocess.run(
            [*command, "-k", "magnitude"] if "pytest" in command else command,
            cwd=repository, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
