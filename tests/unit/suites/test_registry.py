"""The list of suites is all that a new one needs."""

from __future__ import annotations

import pytest

from pytest_msprobe.engines.protocol import BENCH_FORMS, DEVICE_FORMS
from pytest_msprobe.run.settings import RUN_OPTIONS, all_options
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.contract import Suite
from pytest_msprobe.suites.gradients.options import GradientSettings
from pytest_msprobe.suites.options import Option, Options
from pytest_msprobe.suites.overflow.options import OverflowSettings
from pytest_msprobe.suites.precheck.options import STANDARDS, PrecheckSettings
from pytest_msprobe.suites.registry import SUITES, suite_class, suite_options, suites_with
from pytest_msprobe.suites.repeat.options import RepeatSettings


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


@pytest.mark.parametrize(
    "chosen", [GradientSettings, OverflowSettings, ComparisonSettings, PrecheckSettings, RepeatSettings]
)
def test_settings_without_arguments_are_those_of_a_run_without_options(chosen: type[Options]) -> None:
    values = {option.name: option.default_value() for option in suite_options()}
    assert chosen.of(values) == chosen()


def test_help_names_what_the_parsers_take() -> None:
    """Help is written without importing engines and standards, which every pytest run would pay for."""
    text = {option.name: option.help for option in all_options()}
    assert all(name in text["standard"] for name in STANDARDS)
    assert DEVICE_FORMS in text["device"]
    assert BENCH_FORMS in text["bench"]
