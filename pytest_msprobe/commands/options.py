"""The command `options`: all options by suite and by what they are about, or one of them explained."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from operator import attrgetter

from pytest_msprobe.commands.common import CommandError, print_lines
from pytest_msprobe.run.settings import CONFIG, DUMP, OptionSection, all_options, sections, suites_of
from pytest_msprobe.suites.options import Option
from pytest_msprobe.suites.registry import SUITES

_PREFIXES = ("--msprobe-", "msprobe_", "msprobe-")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "options",
        help="list all options of pytest by suite, or explain one",
        description="List all options that pytest-msprobe adds to pytest, by suite and by what they are about, or the "
        "options of one suite, or explain one option.",
        prefix_chars="+",  # the names of options are values here
        add_help=False,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="option, such as --msprobe-seed or seed, or a suite")
    parser.set_defaults(run=show_options, help_text=parser.format_help())


def show_options(arguments: argparse.Namespace) -> None:
    """List options, or explain one.

    Raises:
        CommandError: there is no such option or suite.
    """
    name: str | None = arguments.name
    if name in ("-h", "--help"):
        sys.stdout.write(arguments.help_text)
        return
    width = min(shutil.get_terminal_size().columns, 120)
    lines: list[str] = []
    if name is not None and name not in SUITES:
        lines += _explanation(_option(name), width)
    else:
        for section in sections():
            if name in (None, section.title):
                lines += _listing(section, width)
    if name is None:
        lines += [
            "Each is also a key of an ini file (msprobe_seed) and of the YAML file of --msprobe-config (seed).",
            "One option: python -m pytest_msprobe options NAME",
        ]
    print_lines(lines)


def _option(name: str) -> Option:
    by_name = {option.name: option for option in (DUMP, CONFIG, *all_options())}
    prefix = next(filter(name.startswith, _PREFIXES), "")
    plain = name.removeprefix(prefix).replace("-", "_")
    if plain not in by_name:
        near = get_close_matches(plain, [*by_name, *SUITES], n=1)
        hint = f"did you mean {near[0]}?" if near else "`python -m pytest_msprobe options` lists all"
        raise CommandError(f"there is no option and no suite {name!r}; {hint}")
    return by_name[plain]


def _listing(section: OptionSection, width: int) -> Iterator[str]:
    entry = SUITES.get(section.title)
    yield f"{section.title}: {entry.question}?" if entry is not None else section.title
    if section.shared:
        names = " ".join(map(attrgetter("flag"), section.shared))
        yield from _wrapped(f"also, as above: {names}", width, "  ")
    for title, options in section.questions:
        yield f"  {title}"
        for option in options:
            yield f"    {_usage(option)}"
            text = f"{option.help} (default: {option.default or 'none'})"
            yield from _wrapped(text, width, " " * 8)
    yield ""


def _explanation(option: Option, width: int) -> Iterator[str]:
    yield _usage(option)
    yield from _wrapped(option.help, width, "  ")
    suites = suites_of(option)
    yield f"  {'suite' if len(suites) == 1 else 'suites'}: {', '.join(suites).removesuffix(' suite')}"
    yield f"  default: {option.default or 'none'}"
    if not option.is_yaml_only:
        yield f"  ini file: {option.key}"
    yield f"  YAML file of --msprobe-config: {option.name}"


def _usage(option: Option) -> str:
    if option.is_yaml_only:
        return f"{option.name}: (in the YAML file of --msprobe-config only)"
    return "=".join(filter(None, (option.flag, option.metavar)))


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Lines of `text`; names of options stay whole."""
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
