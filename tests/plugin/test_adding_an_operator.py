"""The recipe of docs/extending.md, to the letter: its lines are added, and records of its operators are judged."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

from pytest_msprobe.apis import fact_table, facts
from pytest_msprobe.engines.torch_bindings import lookup

RECIPE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```text (\S+\.txt)\n(.*?)^```$", RECIPE, re.MULTILINE | re.DOTALL)
TOPICS = [path.relative_to(fact_table.FOLDER).with_suffix("").as_posix() for path in fact_table.FOLDER.rglob("*.txt")]
X = np.linspace(-2, 2, 4096, dtype=np.float32)
TOSSED = np.random.default_rng(0).integers(0, 2, X.size).astype(np.float32)


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fact files with the lines of the recipe at their ends."""
    folder = Path(shutil.copytree(fact_table.FOLDER, tmp_path / "facts"))
    for file, lines in BLOCKS:
        with (folder / file).open("a", encoding="utf-8") as stream:
            stream.write(lines)
    monkeypatch.setattr(fact_table, "FOLDER", folder)
    _forget()
    yield
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    facts.cache_clear()
    lookup.cache_clear()
    fact_table.random_api.cache_clear()


def dump(folder: Path) -> Path:
    builder = DumpBuilder(folder)
    builder.call("Functional.scaled_tanh.0", [X, 3.0], [np.float32(3) * np.tanh(X)])
    builder.call("Functional.scaled_tanh.1", [X], [np.tanh(X) * np.float32(1.05)])
    builder.call("Functional.coin.0", [X], [TOSSED])
    builder.call("Functional.coin.1", [X, 0.1], [TOSSED])
    builder.call("Functional.scratch.0", [(2, 3)], [X * 1e30])
    return builder.write()


def verdicts(pytester: pytest.Pytester) -> dict[str, tuple[str, str]]:
    pytester.runpytest(f"--msprobe-dump={dump(pytester.path / 'dump')}", "--msprobe-device=recorded")
    found = Reports(pytester.path).results
    return {name: (row["Forward Test Success"], row["Message"]) for name, row in found.items()}


def test_an_operator_is_judged_once_its_lines_are_there(pytester: pytest.Pytester, added: None) -> None:
    pytest.importorskip("torch")
    found = verdicts(pytester)
    assert {name: status for name, (status, _) in found.items()} == {
        "Functional.scaled_tanh.0": "pass",
        "Functional.scaled_tanh.1": "error",
        "Functional.coin.0": "pass",
        "Functional.coin.1": "error",
        "Functional.scratch.0": "SKIP",
    }
    assert "uninitialised memory" in found["Functional.scratch.0"][1]
    assert facts("elementary").find("Functional", "scaled_tanh") is not None


def test_without_them_it_is_skipped(pytester: pytest.Pytester) -> None:
    found = verdicts(pytester)
    assert {status for status, _ in found.values()} == {"SKIP"}


def test_every_topic_is_in_the_table_of_the_page() -> None:
    listed = set(re.findall(r"`([\w/*]+)\.txt`", RECIPE))
    files = {
        path.relative_to(fact_table.FOLDER).with_suffix("").as_posix() for path in fact_table.FOLDER.rglob("*.txt")
    }
    assert {"torch_calls/*" if "/" in file else file for file in files} <= listed
