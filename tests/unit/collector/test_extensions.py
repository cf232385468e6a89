"""How the collector runs extensions, of packages that it does not name."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from msprobe_collector import extensions

CALLS: list[tuple[Any, ...]] = []


def _say(*arguments: Any) -> dict[str, object]:
    CALLS.append(arguments)
    return {"count": len(CALLS)}


#: Objects of entry points.
watching = SimpleNamespace(start=lambda *given: _say("watching", *given), optimizer_leaves=_say)
silent = SimpleNamespace(start=lambda *given: _say("silent", *given), optimizer_leaves=lambda *given: {})
broken = SimpleNamespace(start=lambda framework: 1 / 0, optimizer_leaves=lambda *given: 1 / 0)

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """install(name=object) makes these the extensions of the environment."""

    def put(*points: tuple[str, str]) -> None:
        entries = [EntryPoint(name, f"{__name__}:{value}", extensions.GROUP) for name, value in points]
        monkeypatch.setattr(
            "importlib.metadata.entry_points", lambda group: entries if group == extensions.GROUP else []
        )

    CALLS.clear()
    extensions._installed.cache_clear()
    yield put
    extensions._installed.cache_clear()


@pytest.mark.parametrize(
    ("value", "calls"), [("1", [("watching", "pytorch")]), ("folder", [("watching", "pytorch")]), ("0", []), ("", [])]
)
def test_a_variable_starts_the_extension_of_its_name(
    value: str, calls: list[Any], install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(("watching", "watching"), ("silent", "silent"))
    monkeypatch.setenv("MSPROBE_WATCHING", value)
    extensions.start("pytorch")
    assert calls == CALLS


def test_nothing_is_looked_for_where_no_variable_asks(monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: pytest.fail("packages are looked through"))
    for name in [name for name in extensions.os.environ if name.startswith("MSPROBE_")]:
        monkeypatch.delenv(name)
    extensions.start("mindspore")


def test_all_extensions_say_more_of_an_optimizer(install: Install) -> None:
    install(("silent", "silent"), ("watching", "watching"))
    assert extensions.optimizer_leaves("mindspore", "the optimizer") == {"count": 1}
    assert CALLS == [("mindspore", "the optimizer", None)]


@pytest.mark.parametrize("value", ["broken", "nothing"])
def test_a_broken_extension_is_one_line_and_the_others_go_on(
    value: str, install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(("broken", value), ("watching", "watching"))
    monkeypatch.setenv("MSPROBE_BROKEN", "1")
    extensions.start("pytorch")
    assert extensions.optimizer_leaves("pytorch", None) == {"count": 1}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"msprobe: the extension broken of the package {__name__}:{value} is left out: ")


def test_of_two_extensions_of_one_name_the_second_is_left_out(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(("watching", "watching"), ("watching", "silent"))
    assert extensions.optimizer_leaves("pytorch", None) == {"count": 1}
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{__name__}:silent is left out" in line


def test_the_collector_names_no_extension_of_this_repository() -> None:
    root = Path(__file__).parents[3]
    packages = [path.name for path in root.glob("extensions/*/msprobe_*")]
    assert "msprobe_laws" in packages
    names = re.compile("|".join(packages), re.IGNORECASE)  # variables have the same names
    texts = {path: path.read_text(encoding="utf-8") for path in (root / "collector").rglob("*.py")}
    assert len(texts) > 50
    assert [path for path, text in texts.items() if names.search(text)] == []
