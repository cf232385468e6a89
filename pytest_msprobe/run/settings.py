"""Options, ini and YAML, folded once into one frozen value. The command line wins, then YAML, then ini."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_msprobe.suites import option_values
from pytest_msprobe.suites.option import Option
from pytest_msprobe.suites.registry import SUITES, suite_options, suites_with

#: Options of every suite.
RUN_OPTIONS = (
    Option(
        "suite",
        "NAME",
        f"how dumps are judged: {', '.join(SUITES)}; auto: gradients or comparison if their options are given, "
        "else precheck",
        "auto",
        option_values.one_of("auto", *SUITES),
    ),
    Option("out", "DIR", "folder for result files, created when absent", ".", option_values.optional_path),
    Option(
        "jsonl",
        "FILE",
        "write one JSON object per verdict into FILE, replacing it",
        "",
        option_values.new_file,
    ),
    Option(
        "page",
        "FILE",
        "write one page with model, order, pictures and table of all verdicts into FILE, replacing it",
        "",
        option_values.new_file,
    ),
    Option(
        "html_passes",
        "fold|omit|show",
        "passes on the page of --html: folded behind one click, left out, or shown; always counted",
        "fold",
        option_values.one_of("fold", "omit", "show"),
    ),
    Option(
        "resume",
        "FILE",
        "continue an interrupted run: its --msprobe-jsonl file or, in precheck, its result CSV",
        "",
        option_values.optional_path,
    ),
    Option(
        "timeout",
        "SECONDS",
        "with -n: end a check that takes longer; 0: never; auto: a limit that grows with its estimated cost",
        "auto",
        option_values.timeout,
    ),
    Option(
        "shard", "I/N", "judge part I of N, split by cost in the same way on every host", "all", option_values.shard
    ),
    Option(
        "allow_empty",
        "",
        "exit with 0 even if nothing could be judged",
        "",
        option_values.switch,
        bare="true",
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What every run was asked to do, whatever its suite.

    Attributes:
        suite: name of the suite.
        dumps: dump.json files, absolute, in the order in which they are judged.
        is_exclusive: whether pytest collects nothing else where no argument names a path: the ini file alone does not
            say what is to be judged.
        out: folder of the results.
        jsonl: file for machine rows, or None.
        page: file for the page of the run, or None.
        html_passes: what becomes of passes on the HTML page: `fold`, `omit` or `show`.
        resume: result file of an interrupted run to continue, or None.
        timeout_seconds: how long a check in a worker may take; 0 for ever, None for a limit that grows with its cost.
        shard: (number, count) of the part of the records to judge, or None for all.
        allows_empty: whether a run that judged nothing is a success.
        values: parsed values of all options by name, of which a suite reads its own.
    """

    suite: str
    dumps: tuple[Path, ...]
    is_exclusive: bool
    out: Path
    jsonl: Path | None
    page: Path | None
    html_passes: str
    resume: Path | None
    timeout_seconds: float | None
    shard: tuple[int, int] | None
    allows_empty: bool
    values: Mapping[str, Any]


def all_options() -> tuple[Option, ...]:
    """Every option but --msprobe-dump and --msprobe-config, which may be repeated and name the others."""
    return (*RUN_OPTIONS, *suite_options())


def add_options(parser: pytest.Parser) -> None:
    """Declare every option with its ini twin."""
    group = parser.getgroup("msprobe", "pytest-msprobe: the dump of a training step as a test suite")
    group.addoption(
        "--msprobe-dump",
        action="append",
        metavar="PATH",
        help="dump.json, or a folder to search for dump.json files; may be repeated",
    )
    parser.addini("msprobe_dump", "dumps to judge: files or folders", type="paths", default=[])
    group.addoption(
        "--msprobe-config", metavar="FILE", help="YAML file with any of these options as keys (out, device, ...)"
    )
    parser.addini("msprobe_config", "YAML file with settings of pytest-msprobe", default="")
    for option in all_options():
        if option.is_yaml_only:
            continue
        kind: dict[str, Any] = {"metavar": option.metavar}
        if option.bare:
            kind = {"action": "store_const", "const": option.bare}
        if option.is_list:
            kind["action"] = "append"
        shown = "" if option.bare else f" (default: {option.default or 'none'})"
        group.addoption(option.flag, help=f"{option.help}{shown}", **kind)
        parser.addini(option.key, option.help.replace("%%", "%"), default="")


def read_settings(config: pytest.Config) -> Settings:
    """The settings of this run.

    Raises:
        pytest.UsageError: an option, ini or YAML value is wrong, or the suite has no such option; one line with its
            name, its value and what is allowed.
    """
    from pytest_msprobe.run.dump_search import find_dumps
    from pytest_msprobe.run.settings_file import read_settings_file

    options = all_options()
    yaml_values = read_settings_file(config, options)
    values = {option.name: _value(option, config, yaml_values) for option in options}
    given = getattr(config, "workerinput", {}).get("msprobe_dumps")
    dumps, is_exclusive = (tuple(map(Path, given)), True) if given else find_dumps(config, yaml_values)
    suite = _suite(values)
    own = {option.name: option for option in (*RUN_OPTIONS, *SUITES[suite])}
    if not hasattr(config, "workerinput"):
        _refuse_others(config, suite, [option for option in options if option.name not in own])
        _make_absolute(config, own.values(), values)
    return Settings(
        suite=suite,
        dumps=dumps,
        is_exclusive=is_exclusive or config.getoption("msprobe_gradients") is not None,
        out=values["out"],
        jsonl=values["jsonl"],
        page=values["page"],
        html_passes=values["html_passes"],
        resume=values["resume"],
        timeout_seconds=values["timeout"],
        shard=values["shard"],
        allows_empty=values["allow_empty"],
        values=values,
    )


def _suite(values: Mapping[str, Any]) -> str:
    chosen: str = values["suite"]
    if chosen != "auto":
        return chosen
    return "gradients" if values["gradients"] else "comparison" if values["golden"] else "precheck"


def _refuse_others(config: pytest.Config, suite: str, others: Iterable[Option]) -> None:
    """Refuse options of other suites that the command line gives; ini and YAML may serve runs of several suites."""
    for option in others:
        if not option.is_yaml_only and config.getoption(option.key) is not None:
            raise pytest.UsageError(
                f"{option.flag}: has no effect in the suite {suite}, only in {' and '.join(suites_with(option.name))}; "
                f"leave it out, or choose another suite with --msprobe-suite"
            )


def _make_absolute(config: pytest.Config, options: Iterable[Option], values: Mapping[str, Any]) -> None:
    """Have workers read the paths that this process reads: they may start in another folder."""
    for option in options:
        if option.is_path and isinstance(values[option.name], Path):
            setattr(config.option, option.key, os.fspath(values[option.name]))


def _value(option: Option, config: pytest.Config, yaml_values: Mapping[str, Any]) -> Any:
    if option.is_yaml_only:
        return _parsed(option, "", yaml_values.get(option.name), yaml_values.get("", ""))
    sources = (
        (option.flag, config.getoption(option.key)),
        (f"{yaml_values.get('', '')}: key {option.name!r}", yaml_values.get(option.name)),
        (f"ini option {option.key}", _ini(config, option) or None),
    )
    origin, text = next(((origin, text) for origin, text in sources if text is not None), ("", option.default))
    if option.is_list:
        texts = text.splitlines() if isinstance(text, str) else text if isinstance(text, list) else [text]
        return tuple(_parsed(option, origin, str(one).strip()) for one in texts)
    return _parsed(option, origin, str(text))


def _parsed(option: Option, origin: str, *given: Any) -> Any:
    try:
        return option.parse(*given)
    except ValueError as error:
        raise pytest.UsageError(f"{origin or given[-1]}: {error}") from None


def _ini(config: pytest.Config, option: Option) -> str:
    try:
        text: str = config.getini(option.key)
    except TypeError:
        # A native TOML table of pytest 9 has numbers; ours are texts, as in every other configuration file.
        raise pytest.UsageError(
            f'ini option {option.key}: write its value in quotes, as in {option.key} = "1"'
        ) from None
    return text
