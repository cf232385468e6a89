"""The suites under contract, and one plain run of each that many tests look at."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from contract_runs import Run, Workspace
from contract_samples import SAMPLES
from new_suite import install

from pytest_msprobe.suites.registry import SUITES

#: The suites that are installed, and samples of such that a package of their own brings.
NAMES = [*SUITES, *(pytest.param(name, marks=pytest.mark.slow) for name in SAMPLES if name not in SUITES)]

#: Hooks that write down what they are asked, in the only process of a plain run.
ASKED = """
def pytest_msprobe_select(api, dump):
    with open("selected.txt", "a") as file:
        print(api.type, str(api), dump, file=file)

def pytest_msprobe_verdict(row):
    with open("verdicts.txt", "a") as file:
        print(row.node_id, row.status, file=file)
"""


@pytest.fixture(scope="session")
def _package_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def package_of(suite: str) -> Path:
        folder = tmp_path_factory.mktemp(f"package-{suite}")
        install(folder, suite)
        return folder

    return package_of


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take the mark `one_suite` for `slow` with every suite but the first."""
    for item in items:
        suite = getattr(item, "callspec", None) and item.callspec.params.get("suite")
        if suite not in (None, NAMES[0]) and item.get_closest_marker("one_suite"):
            item.add_marker("slow")


@pytest.fixture(params=NAMES)
def suite(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _package_of: Callable[[str], Path]) -> str:
    """Name of a suite, which every process of the test has."""
    name: str = request.param
    if name not in SAMPLES:
        pytest.fail(f"the suite {name} has no sample: add one to SAMPLES in contract_samples.py")
    if name not in SUITES:
        monkeypatch.setenv("PYTHONPATH", str(_package_of(name)), prepend=os.pathsep)
    return name


@pytest.fixture
def workspace(suite: str, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A new folder with the sample of the suite."""
    return Workspace(SAMPLES[suite], tmp_path_factory.mktemp(suite))


@pytest.fixture(scope="session")
def _plain_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Workspace, Run]]:
    found: dict[str, tuple[Workspace, Run]] = {}

    def plain_of(suite: str) -> tuple[Workspace, Run]:
        if suite not in found:
            workspace = Workspace(SAMPLES[suite], tmp_path_factory.mktemp(f"plain-{suite}"))
            found[suite] = workspace, workspace.run(conftest=ASKED, reports=True)
        return found[suite]

    return plain_of


@pytest.fixture
def plain(suite: str, _plain_of: Callable[[str], tuple[Workspace, Run]]) -> Run:
    """An uninterrupted run of the whole sample with every report, in one process."""
    return _plain_of(suite)[1]


@pytest.fixture
def plain_tables(suite: str, _plain_of: Callable[[str], tuple[Workspace, Run]]) -> dict[str, list[str]]:
    """The suite's own result files of that run."""
    workspace, run = _plain_of(suite)
    return workspace.tables(run.out)
