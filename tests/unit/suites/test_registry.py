"""An entry point is all that a new suite needs, and one that is wrong stands in nobody's way."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_msprobe.engines.protocol import BENCH_FORMS, DEVICE_FORMS
from pytest_msprobe.run.settings import CONFIG, DUMP, RUN_OPTIONS, all_options
from pytest_msprobe.suites.contract import Suite, SuiteError
from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.options import Option, Options
from pytest_msprobe.suites.precheck.options import STANDARDS
from pytest_msprobe.suites.registry import (
    DEFAULT,
    OF_EVERY_RUN,
    SUITES,
    read_suites,
    suite_class,
    suite_options,
    suites_with,
)


def settings_classes(base: type[Options] = Options) -> Iterator[type[Options]]:
    for settings in base.__subclasses__():
        yield settings
        yield from settings_classes(settings)


#: By the name of a suite, the class whose fields are its options; of suites with options.
SETTINGS = {
    entry.name: next(settings for settings in settings_classes() if settings.declared() == entry.options)
    for entry in SUITES.values()
    if entry.options
}


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_is_called_as_it_is_listed_and_has_the_listed_options(name: str) -> None:
    found = suite_class(name)
    assert found is not None
    assert issubclass(found, Suite)
    assert found.name == SUITES[name].name == name
    assert SUITES[name].question
    assert found.title
    assert found.item_noun


def test_the_names_of_options_of_every_run_are_those_that_no_suite_can_have() -> None:
    assert {option.name for option in (DUMP, CONFIG, *RUN_OPTIONS)} == OF_EVERY_RUN


def test_an_option_of_several_suites_is_one_option() -> None:
    names = [option.name for option in all_options()]
    assert len(names) == len(set(names))
    for option in suite_options():
        for suite in suites_with(option.name):
            assert [own for own in SUITES[suite].options if own.name == option.name] == [option]


@pytest.mark.parametrize("option", all_options(), ids=lambda option: option.name)
def test_every_default_is_a_value_of_its_option(option: Option) -> None:
    option.default_value()


@pytest.mark.parametrize("chosen", SETTINGS.values())
def test_settings_without_arguments_are_those_of_a_run_without_options(chosen: type[Options]) -> None:
    values = {option.name: option.default_value() for option in suite_options()}
    assert chosen.of(values) == chosen()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_suite_reads_every_option_that_it_has(name: str) -> None:
    """One that it never looks at would be taken, and have no effect."""
    suite = SUITES[name].load()
    paths = {*Path(inspect.getfile(suite)).parent.rglob("*.py")}
    paths |= {Path(inspect.getfile(base)) for base in suite.__mro__ if base.__module__.startswith("pytest_msprobe.")}
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    read = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {field.name for field in fields(SETTINGS[name])} <= read


def test_a_run_that_names_no_suite_can_have_one() -> None:
    assert next(iter(SUITES)) == DEFAULT


GROUP = "pytest_msprobe.suites"
SEED = Option("N", "seed of the inputs", int, "0", name="seed")


def entry(name: str, *options: Option) -> SuiteEntry:
    return SuiteEntry(name, "is it right", options, f"{name}.suite:Suite")


def read(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, object]) -> tuple[list[str], dict[str, str]]:
    """Names of the suites that such entry points give, each in a module of its own, and what is refused."""
    entry_points = []
    for number, (name, found) in enumerate(entries):
        if found is not None:
            monkeypatch.setitem(sys.modules, f"stranger{number}", SimpleNamespace(ENTRY=found))
        entry_points.append(EntryPoint(name, f"stranger{number}:ENTRY", GROUP))
    suites, refused = read_suites(entry_points)
    return list(suites), refused


REFUSED = {
    "cannot be imported": (("other", None), "ModuleNotFoundError: No module named 'stranger1'"),
    "is no entry": (("other", "text"), "it is of the type str, and not a SuiteEntry"),
    "is called otherwise": (("other", entry("another")), "its suite is called 'another'"),
    "has a name that is taken": (("first", entry("first")), "there is a suite of this name already"),
    "has the name of no suite": (("auto", entry("auto")), "there is a suite of this name already"),
    "has an option of every run": (
        ("other", entry("other", replace(SEED, name="out"))),
        "there is another option --msprobe-out already",
    ),
    "has another option of a name": (
        ("other", entry("other", replace(SEED, default="1"))),
        "there is another option --msprobe-seed already",
    ),
    "asks what no list has": (
        ("other", entry("other", replace(SEED, name="x", question="why"))),
        "--msprobe-x has the question 'why', which is none of what, how, where, write, part",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_entry_point_that_cannot_be_used_is_one_line_and_the_rest_stays(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    wrong, why = REFUSED[case]
    names, refused = read(monkeypatch, ("first", entry("first", SEED)), wrong, ("last", entry("last", SEED)))
    assert names == ["first", "last"]
    (line,) = refused
    assert line.endswith(f"its entry point {wrong[0]!r} of {GROUP} is left out: {why}")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("not_there:Suite", "No module named 'not_there'"),
        ("json:Suite", "json:Suite is no suite that is called 'broken'"),
        (SUITES[DEFAULT].place, f"{SUITES[DEFAULT].place} is no suite that is called 'broken'"),
    ],
)
def test_a_class_that_is_not_what_its_entry_says_is_one_line_when_it_is_chosen(
    monkeypatch: pytest.MonkeyPatch, place: str, why: str
) -> None:
    monkeypatch.setitem(SUITES, "broken", SuiteEntry("broken", "is it right", (), place))
    with pytest.raises(SuiteError) as caught:
        suite_class("broken")
    assert str(caught.value).startswith("the suite broken cannot be loaded: ")
    assert str(caught.value).endswith(why)


def test_a_suite_that_is_not_installed_has_no_class() -> None:
    assert suite_class("not_there") is None


@pytest.mark.parametrize("option", [DUMP, CONFIG, *RUN_OPTIONS, *suite_options()], ids=lambda option: option.name)
def test_help_is_one_plain_line(option: Option) -> None:
    """It begins with what the option does, says what its words mean, and names no suite: those are added."""
    text = option.help
    assert text == " ".join(text.split()).rstrip(".")
    assert not re.search(r"\b(born|n\.j\.|T|normal-range|normal-math)\b", text)
    assert not text.startswith(tuple(f"{name}:" for name in SUITES))
    assert option.default != "auto" or "auto: " in text or "auto (" in text
    if re.fullmatch(r"[a-z]+(\|[a-z]+)+", option.metavar):
        assert [word for word in option.metavar.split("|") if word not in text.lower()] == []


def test_help_names_what_the_parsers_take() -> None:
    """Help is written without importing engines and standards, which every pytest run would pay for."""
    text = {option.name: option.help for option in all_options()}
    assert all(name in text["standard"] for name in STANDARDS)
    assert DEVICE_FORMS in text["device"]
    assert BENCH_FORMS in text["bench"]
