"""What a run was asked to do: options, ini and YAML, folded once into one frozen value, and the dumps that they name.

The command line wins, then YAML, then ini. The YAML file of --msprobe-config has the key `dump` and the names of
options; a compare.json, in which older tools are told what to compare, is such a file too: JSON is YAML. The keys under
which pytest's stashes hold our state stand here as well: a project without dumps loads no more than this.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from msprobe_collector.dump_format.values import abbreviated
from msprobe_collector.dump_format.yaml_files import YamlFileError, read_yaml
from pytest_msprobe.run.dump_folders import DumpFolder, look_through, why_no_dump
from pytest_msprobe.suites.options import (
    OPTION_QUESTIONS,
    Option,
    Options,
    choice,
    flag,
    new_file,
    option,
    parse_optional_path,
    parse_path,
    parse_shard,
    parse_timeout,
)
from pytest_msprobe.suites.registry import AUTO, DEFAULT, SUITES, suite_name, suite_options, suites_with

if TYPE_CHECKING:
    from pytest_msprobe.suites.contract import Suite
    from pytest_msprobe.verdicts import Status, VerdictRow


#: The `run.Run` of this process, which knows nodes and settings; unset in a run that has nothing to judge.
RUN: pytest.StashKey[Any] = pytest.StashKey()
#: Its suite.
SUITE: pytest.StashKey[Suite] = pytest.StashKey()
#: The row of an item that has run, until it is on the report.
ROW: pytest.StashKey[VerdictRow] = pytest.StashKey()
#: The verdict of an item whose row is on the report: pytest keeps its items to the end.
STATUS: pytest.StashKey[Status] = pytest.StashKey()
#: A dump.json that was seen in the collection and not asked for.
UNASKED: pytest.StashKey[str] = pytest.StashKey()
#: Why the run ended before its end, on the process that writes; a worker's output says so under the other key.
ENDED: pytest.StashKey[str] = pytest.StashKey()
ENDED_IN_WORKER = "msprobe_ended"


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """What every run was asked to do, whatever its suite: the options of every suite, and what follows from them.

    Attributes:
        dumps: dump.json files, absolute, in the order in which they are judged.
        folders: the paths that name them, and what else is there; in a worker none.
        is_exclusive: whether pytest collects nothing else where no argument names a path: the ini file alone does not
            say what is to be judged.
        values: parsed values of all options by name, of which a suite reads its own.
    """

    dumps: tuple[Path, ...]
    folders: tuple[DumpFolder, ...] = ()
    is_exclusive: bool
    values: Mapping[str, Any]
    suite: str = option(
        "NAME",
        f"what is asked: {', '.join(f'{entry.name} ({entry.question}?)' for entry in SUITES.values())}; auto: gradients"
        ", comparison or sharded where --msprobe-gradients, --msprobe-golden or --msprobe-logical is given, else "
        f"{DEFAULT}",
        suite_name,
        AUTO,
        question="what",
        is_common=True,
    )
    out: Path = option(
        "DIR",
        "write result files into DIR, which is created when absent",
        parse_path,
        ".",
        question="write",
        is_common=True,
    )
    jsonl: Path | None = new_file("write one JSON object per verdict into FILE, replacing an earlier one")
    page: Path | None = new_file(
        "write a page with summary, model, pictures and table of all verdicts into FILE, replacing an earlier one",
    )
    baseline: Path | None = option(
        "FILE",
        "expect the failures that FILE of `python -m pytest_msprobe baseline` holds: they count as xfailed while they "
        "stay as they are; what is new or worse fails",
        parse_optional_path,
        is_path=True,
        is_common=True,
    )
    diagnosis: Path | None = new_file(
        "write the answer of the run into FILE as JSON of at most 4 kB, replacing an earlier one: what is wrong, what "
        "was not judged, what to do next",
    )
    sarif: Path | None = new_file(
        "write what is wrong into FILE as SARIF, which GitHub, GitLab and editors show beside the lines of a script, "
        "replacing an earlier one",
        is_common=False,
    )
    html_passes: str = choice(
        ("fold", "omit", "show"),
        "on the page of --html (not of --msprobe-page), fold passed records behind one click, omit them, or show them; "
        "they always count",
        question="write",
    )
    resume: Path | None = option(
        "FILE",
        "continue the interrupted run that wrote FILE, with --msprobe-jsonl or, in precheck, as its result CSV",
        parse_optional_path,
        question="part",
        is_common=True,
    )
    timeout_seconds: float | None = option(
        "SECONDS",
        "with -n, end a check that takes longer; 0: never; auto: a limit that grows with its estimated cost",
        parse_timeout,
        "auto",
        name="timeout",
        question="part",
    )
    shard: tuple[int, int] | None = option(
        "I/N",
        "judge part I of N of the items; the parts cost about the same and are the same on every host; all: everything",
        parse_shard,
        "all",
        question="part",
        is_common=True,
    )
    is_strict: bool = flag("fail a run in which something could not be judged", name="strict", question="part")
    allows_empty: bool = flag("exit with 0 even if nothing could be judged", name="allow_empty", question="part")


RUN_OPTIONS = Settings.declared()
#: What names the dumps and the other options; read before them, and therefore no fields.
DUMP = Option(
    "PATH",
    "dump.json to judge, or a folder to search for dump.json files; may be repeated",
    str,
    name="dump",
    question="what",
    is_common=True,
)
CONFIG = Option(
    "FILE",
    "YAML file with options as keys, such as out, device or device_ids",
    str,
    name="config",
    question="what",
    is_common=True,
)


def all_options() -> tuple[Option, ...]:
    """Every option but --msprobe-dump and --msprobe-config, which may be repeated and name the others."""
    return (*RUN_OPTIONS, *suite_options())


def read_settings(config: pytest.Config) -> Settings:
    """The settings of this run.

    Raises:
        pytest.UsageError: an option, ini or YAML value is wrong, or the suite has no such option; one line with its
            name, its value and what is allowed.
    """
    options = all_options()
    yaml_values = read_settings_file(config, options)
    values = {option.name: _value(option, config, yaml_values) for option in options}
    of_controller = getattr(config, "workerinput", {}).get("msprobe_dumps")
    folders, is_exclusive = ([], True) if of_controller else find_dumps(config, yaml_values)
    named = of_controller or chain.from_iterable(map(attrgetter("dumps"), folders))
    dumps = tuple(dict.fromkeys(map(Path, named)))
    suite = _suite(values, dumps)
    of_suite = {option.name: option for option in (*RUN_OPTIONS, *SUITES[suite].options)}
    if not hasattr(config, "workerinput"):
        _refuse_others(config, suite, [option for option in options if option.name not in of_suite])
        # Workers may start in another folder, and read the paths that this process reads.
        for declared in of_suite.values():
            if declared.is_path and isinstance(values[declared.name], Path):
                setattr(config.option, declared.key, os.fspath(values[declared.name]))
    return Settings.of(
        {**values, "suite": suite},
        dumps=dumps,
        folders=tuple(folders),
        is_exclusive=is_exclusive or config.getoption("msprobe_gradients") is not None,
        values=values,
    )


def _suite(values: Mapping[str, Any], dumps: Sequence[Path]) -> str:
    chosen: str = values["suite"]
    if chosen != AUTO:
        return chosen
    named = {"gradients": "gradients", "golden": "comparison", "logical": "sharded"}
    by_option = [suite for name, suite in named.items() if values.get(name)]
    names = set(map(attrgetter("name"), dumps))
    by_files = [entry.name for entry in SUITES.values() if names and names.issubset(entry.files)]
    try:
        return suite_name([*by_option, *by_files, DEFAULT][0])
    except ValueError as error:
        raise pytest.UsageError(f"--msprobe-suite={AUTO}: {error}; install pytest-msprobe again") from None


def _refuse_others(config: pytest.Config, suite: str, others: Iterable[Option]) -> None:
    """Refuse options of other suites that the command line gives; ini and YAML may serve runs of several suites."""
    for other in others:
        if not other.is_yaml_only and config.getoption(other.key) is not None:
            raise pytest.UsageError(
                f"{other.flag}: has no effect in the suite {suite}, only in "
                f"{' and '.join(suites_with(other.name))}; leave it out, or choose another suite with --msprobe-suite"
            )


def _value(option: Option, config: pytest.Config, yaml_values: Mapping[str, Any]) -> Any:
    if option.is_yaml_only:
        return _parsed(option, "", yaml_values.get(option.name), yaml_values.get("", ""))
    sources = (
        (option.flag, config.getoption(option.key)),
        (f"{yaml_values.get('', '')}: key {option.name!r}", yaml_values.get(option.name)),
        (f"ini option {option.key}", _ini(config, option.key) or None),
    )
    origin, text = next(((origin, text) for origin, text in sources if text is not None), ("", option.default))
    if option.is_list:
        entries = text if isinstance(text, list) else str(text).splitlines()
        return tuple(_parsed(option, origin, str(entry).strip()) for entry in entries)
    return _parsed(option, origin, str(text))


def _parsed(option: Option, origin: str, *texts: Any) -> Any:
    try:
        return option.parse(*texts)
    except ValueError as error:
        raise pytest.UsageError(f"{origin or texts[-1]}: {error}") from None


def _ini(config: pytest.Config, key: str) -> str:
    try:
        text: str = config.getini(key)
    except TypeError:
        # A native TOML table of pytest 9 has numbers; ours are texts, as in every other configuration file.
        raise pytest.UsageError(f'ini option {key}: write its value in quotes, as in {key} = "1"') from None
    return text


#: Keys of a compare.json and what they are here.
_COMPARED = {"npu_path": "dump", "bench_path": "golden"}
#: stack.json is read from beside the dump, and pytest prints each record with -v.
_WITHOUT_EFFECT = ("stack_path", "is_print_compare_log")
_OF_KERNELS = ("rank_id", "step_id", "common", "map_dict")


def read_settings_file(config: pytest.Config, options: Sequence[Option]) -> dict[str, Any]:
    """The values in the file by their keys, paths for `dump`; and as "" what messages call the file. Empty without one.

    Raises:
        pytest.UsageError: it cannot be read, or a key or the value of `dump` is wrong.
    """
    name: str = config.getoption("msprobe_config") or config.getini("msprobe_config")
    if not name:
        return {}
    path = Path(os.path.abspath(name)) if config.getoption("msprobe_config") else config.rootpath / name
    try:
        content = read_yaml(path) or {}
    except YamlFileError as error:
        raise pytest.UsageError(f"--msprobe-config={name}: {error}") from None
    if not isinstance(content, dict):
        raise pytest.UsageError(f"--msprobe-config={name}: expected keys and values, found {type(content).__name__}")
    content = _translated(content, name)
    keys = ["dump", *map(attrgetter("name"), options)]
    for key in content:
        if key not in keys:
            near = get_close_matches(str(key), keys, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(keys)}"
            raise pytest.UsageError(f"--msprobe-config={name}: unknown key {abbreviated(key)}; {hint}")
    return {**content, "dump": _yaml_dumps(content.get("dump"), path), "": f"--msprobe-config={name}"}


def _translated(content: dict[str, Any], name: str) -> dict[str, Any]:
    """`content` with the keys of a compare.json under the names that they have here; its paths start where we do."""
    if _COMPARED.keys().isdisjoint(content):
        return content
    translated: dict[str, Any] = {}
    for key, value in content.items():
        if key in _OF_KERNELS:
            raise pytest.UsageError(
                f"--msprobe-config={name}: key {key!r} is for dumps of kernels, which nothing here compares"
            )
        if key in _COMPARED:
            if not isinstance(value, str) or not value:
                raise pytest.UsageError(
                    f"--msprobe-config={name}: key {key!r}: expected the path of a dump, found {abbreviated(value)}"
                )
            translated[_COMPARED[key]] = os.path.abspath(value)
        elif key not in _WITHOUT_EFFECT:
            translated[key] = value
    return translated


def _yaml_dumps(value: Any, path: Path) -> list[Path]:
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise pytest.UsageError(
            f"--msprobe-config={path}: key 'dump': expected a path or a list of paths, found {abbreviated(value)}"
        )
    return list(map(path.parent.joinpath, names))


def find_dumps(config: pytest.Config, yaml_values: dict[str, Any]) -> tuple[list[DumpFolder], bool]:
    """What command line, YAML or ini name, the first of them that names any; and whether the ini does not.

    A project whose ini file names dumps has tests of its own beside them.

    Raises:
        pytest.UsageError: a path does not exist or holds no dump.
    """
    named = config.getoption("msprobe_dump")
    in_yaml = yaml_values.get("dump")
    paths = list(map(config.invocation_params.dir.joinpath, named or ()))
    is_in_ini = not named and not (in_yaml and config.getoption("msprobe_config"))
    paths = paths or in_yaml or config.getini("msprobe_dump")
    return [_look(Path(os.path.abspath(path))) for path in paths], not is_in_ini


def _look(path: Path) -> DumpFolder:
    try:
        is_file = path.is_file()
    except OSError as error:  # a part of the name is too long
        raise pytest.UsageError(f"--msprobe-dump={abbreviated(str(path))}: {error.strerror}") from None
    if is_file:
        return DumpFolder(path, [path])
    if not path.is_dir():
        raise pytest.UsageError(f"--msprobe-dump={path}: there is no such file or folder")
    folder = look_through(path)
    if not folder.dumps:
        raise pytest.UsageError(f"--msprobe-dump={path}: {why_no_dump(folder)}")
    return folder


_NAMING = ("dump", "config", "golden", "suite", "gradients", "logical")


def names_a_dump(config: pytest.Config) -> bool:
    """Whether options, ini, YAML or a plain argument name something to judge."""
    if getattr(config, "workerinput", {}).get("msprobe_dumps"):
        return True
    if any(config.getoption(f"msprobe_{name}") or config.getini(f"msprobe_{name}") for name in _NAMING):
        return True
    return "dump.json" in map(attrgetter("name"), named_paths(config))


def refuse_unknown_ini_keys(config: pytest.Config) -> None:
    """Refuse a key of the ini file, or of -o, that is meant for us and misspelt: pytest only warns of it.

    Raises:
        pytest.UsageError: there is one; the text has the nearest key.
    """
    yaml_only = filter(attrgetter("is_yaml_only"), all_options())
    yaml_keys = set(map(attrgetter("key"), yaml_only))
    for key in sorted(config._get_unknown_ini_keys()):
        if key in yaml_keys:
            raise pytest.UsageError(f"ini option {key}: is a key of the YAML file of --msprobe-config only")
        near = near_key(key, known_keys())
        if near is not None:
            hint = f"did you mean {near!r}?" if near else f"known are {', '.join(known_keys())}"
            raise pytest.UsageError(f"ini option {abbreviated(key)}: unknown; {hint}")


def known_keys() -> list[str]:
    """The keys of an ini file that are ours."""
    return ["msprobe_dump", "msprobe_config", *(option.key for option in all_options() if not option.is_yaml_only)]


def near_key(key: str, keys: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    """The one of our `keys` that `key` is likely to mean, "" where only its prefix is ours; None for a foreign key."""
    plain = key.lower().replace("-", "_")
    is_ours = plain.startswith("msprobe")
    near = get_close_matches(plain, keys, n=1, cutoff=cutoff if is_ours else 0.85)
    return next(iter(near), "" if is_ours else None)


def named_paths(config: pytest.Config) -> list[Path]:
    """Paths that the command line named, or that a run put there; not those of testpaths."""
    if config.args_source != pytest.Config.ArgsSource.ARGS and RUN not in config.stash:
        return []
    return [path_of(config, argument) for argument in config.args]


def path_of(config: pytest.Config, argument: str) -> Path:
    """The absolute path in a plain argument, which may go on with a node id."""
    return Path(os.path.abspath(config.invocation_params.dir / argument.partition("::")[0]))


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
        for declared in entry.options:
            (shared if declared.name in listed else new).append(declared)
        yield OptionSection(entry.name, by_question(new), tuple(shared))
        listed.update(map(attrgetter("name"), new))


def by_question(options: Sequence[Option]) -> tuple[tuple[str, tuple[Option, ...]], ...]:
    """What these options are about, and the options that are, in the order of `OPTION_QUESTIONS`."""
    by_key: dict[str, list[Option]] = {key: [] for key in OPTION_QUESTIONS}
    for declared in options:
        by_key[declared.question].append(declared)
    return tuple((OPTION_QUESTIONS[key], tuple(chosen)) for key, chosen in by_key.items() if chosen)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option with its ini twin; `pytest --help` lists those that most runs need.

    All others work the same way on the command line, in ini files and in YAML; `python -m
    pytest_msprobe options` lists them.
    """
    groups, head = {}, "pytest-msprobe (python -m pytest_msprobe options: all of them)"
    for key, title in OPTION_QUESTIONS.items():
        groups[key] = parser.getgroup(f"msprobe-{key}", f"{head}: {title}")
        head = "pytest-msprobe"
    for declared in (DUMP, CONFIG, *all_options()):
        if declared.is_yaml_only:
            continue
        kind: dict[str, Any] = {"metavar": declared.metavar}
        if declared.bare:
            kind = {"action": "store_const", "const": declared.bare}
        if declared.is_list or declared is DUMP:
            kind["action"] = "append"
        # argparse formats help.
        shown = help_of(declared).replace("%", "%%") if declared.is_common else argparse.SUPPRESS
        groups[declared.question].addoption(declared.flag, help=shown, **kind)
        if declared is DUMP:
            parser.addini(declared.key, f"as {declared.flag}", type="paths", default=[])
        else:
            parser.addini(declared.key, f"as {declared.flag}", default="")


def help_of(declared: Option) -> str:
    """One line: what the option does, which suites honour it, and its default."""
    return f"{declared.help} ({', '.join(suites_of(declared))}; default: {declared.default or 'none'})"


def suites_of(declared: Option) -> list[str]:
    """The suites that honour an option, or `EVERY_SUITE`."""
    if declared is DUMP:
        return [name for name in SUITES if name != "gradients"]
    return suites_with(declared.name) or [EVERY_SUITE]


def list_common_ini_keys(config: pytest.Config) -> None:
    """Leave out of `--help`, which lists all keys of ini files, those of options that it does not list."""
    listed: dict[str, Any] = getattr(config._parser, "_inidict", {})  # nothing public says what is listed
    for declared in all_options():
        if not declared.is_common:
            listed.pop(declared.key, None)


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
