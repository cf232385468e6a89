"""Which suites there are. Listing a suite here, with its options and its question, is all that a new one needs."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from msprobe_laws.suite.options import OPTIONS as LAWS_OPTIONS
from pytest_msprobe.suites.comparison.options import OPTIONS as COMPARISON_OPTIONS
from pytest_msprobe.suites.gradients.options import OPTIONS as GRADIENT_OPTIONS
from pytest_msprobe.suites.options import Option
from pytest_msprobe.suites.overflow.options import OPTIONS as OVERFLOW_OPTIONS
from pytest_msprobe.suites.precheck.options import OPTIONS as PRECHECK_OPTIONS
from pytest_msprobe.suites.repeat.options import OPTIONS as REPEAT_OPTIONS
from pytest_msprobe.suites.sharded.options import OPTIONS as SHARDED_OPTIONS

if TYPE_CHECKING:
    from pytest_msprobe.suites.contract import Context, Suite

#: Options of each suite by its name. Its module `suite`, loaded when chosen, has its class as `SUITE`, and `make`.
SUITES: dict[str, tuple[Option, ...]] = {
    "precheck": PRECHECK_OPTIONS,
    "comparison": COMPARISON_OPTIONS,
    "overflow": OVERFLOW_OPTIONS,
    "gradients": GRADIENT_OPTIONS,
    "repeat": REPEAT_OPTIONS,
    "sharded": SHARDED_OPTIONS,
    "laws": LAWS_OPTIONS,
}
#: What each suite asks of a dump, for help.
QUESTIONS = {
    "precheck": "is each API call right",
    "comparison": "where does it differ from another dump",
    "overflow": "where do NaN and Inf begin",
    "gradients": "at which step do gradients go wrong",
    "repeat": "is each result the same every time",
    "sharded": "do ranks compute what the whole model does",
    "laws": "does training obey the laws of every training",
}


def suite_options() -> tuple[Option, ...]:
    """The options of all suites, each once."""
    return tuple({option.name: option for options in SUITES.values() for option in options}.values())


def suites_with(name: str) -> list[str]:
    """Suites that have the option called `name`."""
    return [suite for suite, options in SUITES.items() if any(option.name == name for option in options)]


def suite_class(name: str) -> type[Suite] | None:
    """The class of the suite called `name`; None for one that this version does not know."""
    return _module(name).SUITE if name in SUITES else None


def make_suite(name: str, context: Context) -> Suite:
    """The suite called `name` for one process of a run.

    Raises:
        SuiteError: the run cannot begin.
    """
    return _module(name).make(context)  # type: ignore[no-any-return]  # loaded by name


def _module(name: str) -> ModuleType:
    return import_module("msprobe_laws.suite.suite" if name == "laws" else f"pytest_msprobe.suites.{name}.suite")
