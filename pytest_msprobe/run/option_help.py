"""How options are declared to pytest and listed: by what they are about, the common ones in `pytest --help`.

`pytest --help` lists the options that most runs need. All others work the same way on the command line, in ini files
and in YAML; `python -m pytest_msprobe options` lists all.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pytest

from pytest_msprobe.run.settings import CONFIG, DUMP, RUN_OPTIONS, all_options, known_keys, near_key
from pytest_msprobe.suites.options import OPTION_QUESTIONS, Option
from pytest_msprobe.suites.registry import SUITES, suites_with

#: Of several suites' options, what the section of those of every suite is called.
EVERY_SUITE = "every suite"


@dataclass(frozen=True)
class OptionSection:
    """The options of a suite.

    Attributes:
        title: name of the suite, or `EVERY_SUITE`.
        questions: what options are about, and those that are, in the order of lists; none is empty.
        shared: options of this suite that stand in an earlier section.
    """

    title: str
    questions: tuple[tuple[str, tuple[Option, ...]], ...]
    shared: tuple[Option, ...] = ()


def sections() -> Iterator[OptionSection]:
    """All options, each once: those of every suite, then by the first suite that has them."""
    yield OptionSection(EVERY_SUITE, by_question([DUMP, CONFIG, *RUN_OPTIONS]))
    listed: set[str] = set()
    for entry in SUITES.values():
        new, shared = list[Option](), list[Option]()
        for option in entry.options:
            (shared if option.name in listed else new).append(option)
        yield OptionSection(entry.name, by_question(new), tuple(shared))
        listed.update(map(attrgetter("name"), new))


def by_question(options: Sequence[Option]) -> tuple[tuple[str, tuple[Option, ...]], ...]:
    """What these options are about, and the options that are, in the order of `OPTION_QUESTIONS`."""
    by_key: dict[str, list[Option]] = {key: [] for key in OPTION_QUESTIONS}
    for option in options:
        by_key[option.question].append(option)
    return tuple((OPTION_QUESTIONS[key], tuple(chosen)) for key, chosen in by_key.items() if chosen)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option with its ini twin."""
    groups, head = {}, "pytest-msprobe (python -m pytest_msprobe options: all of them)"
    for key, title in OPTION_QUESTIONS.items():
        groups[key] = parser.getgroup(f"msprobe-{key}", f"{head}: {title}")
        head = "pytest-msprobe"
    for option in (DUMP, CONFIG, *all_options()):
        if option.is_yaml_only:
            continue
        kind: dict[str, Any] = {"metavar": option.metavar}
        if option.bare:
            kind = {"action": "store_const", "const": option.bare}
        if option.is_list or option is DUMP:
            kind["action"] = "append"
        # argparse formats help.
        shown = help_of(option).replace("%", "%%") if option.is_common else argparse.SUPPRESS
        groups[option.question].addoption(option.flag, help=shown, **kind)
        if option is DUMP:
            parser.addini(option.key, f"as {option.flag}", type="paths", default=[])
        else:
            parser.addini(option.key, f"as {option.flag}", default="")


def help_of(option: Option) -> str:
    """One line: what the option does, which suites honour it, and its default."""
    return f"{option.help} ({', '.join(suites_of(option))}; default: {option.default or 'none'})"


def suites_of(option: Option) -> list[str]:
    """The suites that honour an option, or `EVERY_SUITE`."""
    if option is DUMP:
        return [name for name in SUITES if name != "gradients"]
    return suites_with(option.name) or [EVERY_SUITE]


def list_common_ini_keys(config: pytest.Config) -> None:
    """Leave out of `--help`, which lists all keys of ini files, those of options that it does not list."""
    listed: dict[str, Any] = getattr(config._parser, "_inidict", {})  # nothing public says what is listed
    for option in all_options():
        if not option.is_common:
            listed.pop(option.key, None)


def refuse_unknown_options(parser: pytest.Parser, arguments: Sequence[str]) -> None:
    """Refuse an argument that is meant as one of our options and misspelt, which pytest refuses without a suggestion.

    Raises:
        pytest.UsageError: there is one; the text has the nearest option.
    """
    if not any(argument.lower().startswith("--m") for argument in arguments):
        return
    _, unknown = parser.parse_known_and_unknown_args(arguments)
    for argument in unknown:
        name = argument.partition("=")[0]
        near = near_key(name.lstrip("-"), known_keys()) if name.startswith("--") else None
        if near:
            flag = f"--{near.replace('_', '-')}"
            raise pytest.UsageError(f"{name}: there is no such option; did you mean {flag}?")
