"""The list of suites is all that a new one needs."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

import pytest_msprobe
from msprobe_laws.suite.options import LawsSettings
from pytest_msprobe.engines.protocol import BENCH_FORMS, DEVICE_FORMS
from pytest_msprobe.run.settings import CONFIG, DUMP, RUN_OPTIONS, all_options
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.contract import Suite
from pytest_msprobe.suites.gradients.options import GradientSettings
from pytest_msprobe.suites.options import Option, Options
from pytest_msprobe.suites.overflow.options import OverflowSettings
from pytest_msprobe.suites.precheck.options import STANDARDS, PrecheckSettings
from pytest_msprobe.suites.registry import QUESTIONS, SUITES, suite_class, suite_options, suites_with
from pytest_msprobe.suites.repeat.options import RepeatSettings
from pytest_msprobe.suites.sharded.options import ShardedSettings

SETTINGS: list[type[Options]] = [
    GradientSettings,
    OverflowSettings,
    ComparisonSettings,
    LawsSettings,
    PrecheckSettings,
    RepeatSettings,
    ShardedSettings,
]


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_is_called_as_it_is_listed_and_has_the_listed_options(name: str) -> None:
    found = suite_class(name)
    assert found is not None
    assert issubclass(found, Suite)
    assert (found.name, found.options) == (name, SUITES[name])
    assert found.title
    assert found.item_noun


@pytest.mark.parametrize("name", SUITES)
def test_no_option_of_a_suite_is_one_of_every_run(name: str) -> None:
    assert not {option.name for option in SUITES[name]} & {option.name for option in RUN_OPTIONS}


def test_an_option_of_several_suites_is_one_option() -> None:
    names = [option.name for option in all_options()]
    assert len(names) == len(set(names))
    for option in suite_options():
        for suite in suites_with(option.name):
            assert [own for own in SUITES[suite] if own.name == option.name] == [option]


@pytest.mark.parametrize("option", all_options(), ids=lambda option: option.name)
def test_every_default_is_a_value_of_its_option(option: Option) -> None:
    option.default_value()


@pytest.mark.parametrize("chosen", SETTINGS)
def test_settings_without_arguments_are_those_of_a_run_without_options(chosen: type[Options]) -> None:
    values = {option.name: option.default_value() for option in suite_options()}
    assert chosen.of(values) == chosen()


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_reads_every_option_that_it_has(name: str) -> None:
    """One that it never looks at would be taken, and have no effect."""
    (chosen,) = (settings for settings in SETTINGS if settings.declared() == SUITES[name])
    paths = (Path(pytest_msprobe.__file__).parent / "suites" / name).rglob("*.py")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    read = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {field.name for field in fields(chosen)} <= read


def test_every_suite_has_its_question() -> None:
    assert list(QUESTIONS) == list(SUITES)


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
