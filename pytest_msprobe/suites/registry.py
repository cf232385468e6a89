"""Which suites there are: those that entry points of the group `pytest_msprobe.suites` name, ours and others alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.options import OPTION_QUESTIONS, Option
from pytest_msprobe.support import entry_points_of, left_out, text_of

if TYPE_CHECKING:
    from pytest_msprobe.suites.contract import Context, Suite

#: Options of every run (run/settings.py): no suite can have one of these names.
OF_EVERY_RUN = {*"dump config suite out jsonl page baseline diagnosis sarif html_passes resume timeout".split()}
OF_EVERY_RUN |= {"shard", "strict", "allow_empty"}
#: What a run that names no suite asks for, and what it then gets where nothing else says it.
AUTO, DEFAULT = "auto", "precheck"


def read_suites(entry_points: Iterable[EntryPoint]) -> tuple[dict[str, SuiteEntry], dict[str, str]]:
    """The suites that can be had, by name, and the names of entry points that cannot, by a line that says why."""
    suites: dict[str, SuiteEntry] = {}
    refused: dict[str, str] = {}
    for entry_point in entry_points:
        try:
            entry = entry_point.load()
            why = _why_not(entry, entry_point.name, suites)
        except Exception as error:
            why = text_of(error)
        if why:
            refused[left_out(entry_point, why)] = entry_point.name
        else:
            suites[entry.name] = entry
    return suites, refused


def _why_not(entry: object, name: str, suites: Mapping[str, SuiteEntry]) -> str:
    """Why an entry would stand in the way of other suites, or of pytest itself; "" where it does not."""
    if not isinstance(entry, SuiteEntry):
        return f"it is of the type {type(entry).__name__}, and not a SuiteEntry"
    if entry.name != name:
        return f"its suite is called {entry.name!r}"
    if name in (AUTO, *suites):
        return "there is a suite of this name already"
    others = {option.name: option for other in suites.values() for option in other.options}
    for option in entry.options:
        if option.name in OF_EVERY_RUN or others.get(option.name, option) != option:
            return f"there is another option {option.flag} already"
        if option.question not in OPTION_QUESTIONS:
            return f"{option.flag} has the question {option.question!r}, which is none of {', '.join(OPTION_QUESTIONS)}"
    return ""


#: The suites by name, that of a run which names none first; and the names of entry points by why they are left out.
SUITES, REFUSED = read_suites(
    sorted(entry_points_of("pytest_msprobe.suites"), key=lambda entry_point: entry_point.name != DEFAULT)
)
#: Names of files beside dump.json that a suite judges.
FILES = frozenset(chain.from_iterable(map(attrgetter("files"), SUITES.values())))


def suite_name(text: str) -> str:
    """The parser of --msprobe-suite.

    Raises:
        ValueError: there is no such suite.
    """
    if text not in (AUTO, *SUITES):
        lines = [line for line, name in REFUSED.items() if name == text]
        raise ValueError("; ".join(lines) or f"{text!r} is none of {', '.join((AUTO, *SUITES))}")
    return text


def suite_options() -> tuple[Option, ...]:
    """The options of all suites, each once."""
    options = chain.from_iterable(map(attrgetter("options"), SUITES.values()))
    return tuple({option.name: option for option in options}.values())


def suites_with(name: str) -> list[str]:
    """Suites that have the option called `name`."""
    return [entry.name for entry in SUITES.values() if name in map(attrgetter("name"), entry.options)]


def suite_class(name: str) -> type[Suite] | None:
    """The class of the suite called `name`; None for one that is not installed.

    Raises:
        SuiteError: something that it needs is not installed.
    """
    return _loaded(SUITES[name]) if name in SUITES else None


def make_suite(name: str, context: Context) -> Suite:
    """The suite called `name` for one process of a run.

    Raises:
        SuiteError: the run cannot begin.
    """
    return _loaded(SUITES[name]).make(context)


def _loaded(entry: SuiteEntry) -> type[Suite]:
    try:
        return entry.load()
    except ImportError as error:
        from pytest_msprobe.suites.contract import SuiteError

        raise SuiteError(f"the suite {entry.name} cannot be loaded: {text_of(error)}") from error
