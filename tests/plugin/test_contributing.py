"""The recipes of docs/extending.md, applied to a copy of the package: each keeps its promise."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from new_suite import apply_changes
from report_reader import Reports

import pytest_msprobe

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "extending.md"]
PAGE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"^```(python|diff) (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
X = np.linspace(-2, 2, 64, dtype=np.float32)

#: A benchmark that needs no framework.
NEGATE = """
import numpy as np
from pytest_msprobe.api import Reference

def pytest_msprobe_reference(api):
    return Reference(np.negative) if api.short == "neg" else None
"""


def apply(root: Path) -> None:
    """Write the new files of the page below `root`, and make its changes to files that are there."""
    for kind, name, text in BLOCKS:
        if kind == "python":
            path = root / name
            assert not path.exists(), f"{name} exists: the recipes add it"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    apply_changes(root, BLOCKS)


@pytest.fixture
def changed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this test use the package with the recipes applied."""
    root = pytester.path / "changed"
    source = Path(pytest_msprobe.__file__).parent
    shutil.copytree(source, root / "pytest_msprobe", ignore=shutil.ignore_patterns("__pycache__"))
    apply(root)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]))


def call(folder: Path, name: str, arguments: list[object], output: np.ndarray) -> str:
    return f"--msprobe-dump={DumpBuilder(folder).call(name, arguments, [output]).write()}"


def messages(pytester: pytest.Pytester) -> dict[str, tuple[str, str]]:
    found = Reports(pytester.path).results
    return {name: (row["Forward Test Success"], row["Message"]) for name, row in found.items()}


@pytest.mark.usefixtures("changed")
def test_a_standard_is_chosen_by_name(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(NEGATE)
    dump = call(pytester.path / "dump", "Mint.neg.0", [X], -X * np.float32(1.01))
    result = pytester.runpytest_subprocess(dump, "--msprobe-standard=relative-error", "--msprobe-device=recorded")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Max relative error 0.01* is above 0.001.*"])


@pytest.mark.usefixtures("changed")
def test_a_reference_judges_its_operator(pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    right = np.float32(2) * X / (1 + np.exp(-X))
    dump = DumpBuilder(pytester.path / "dump")
    dump.call("Functional.scaled_silu.0", [X, 2.0], [right])
    dump.call("Functional.scaled_silu.1", [X, 2.0], [right * np.float32(1.1)])
    pytester.runpytest_subprocess(f"--msprobe-dump={dump.write()}", "--msprobe-device=recorded")
    found = messages(pytester)
    assert [found[f"Functional.scaled_silu.{number}"][0] for number in (0, 1)] == ["pass", "error"]


def test_without_the_recipe_the_operator_is_skipped(pytester: pytest.Pytester) -> None:
    dump = call(pytester.path / "dump", "Functional.scaled_silu.0", [X, 2.0], X)
    pytester.runpytest_subprocess(dump, "--msprobe-device=recorded")
    assert messages(pytester)["Functional.scaled_silu.0"][0] == "SKIP"


def test_the_commands_and_files_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`?((?:\.ci|tests|tools|docs|quality|skills)/[\w./]+\w)`?", PAGE))
    assert {name for name in named if not (ROOT / name).exists()} == set()
