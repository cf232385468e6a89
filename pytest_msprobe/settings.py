"""Options, ini and YAML, folded once into one frozen Settings. The command line wins, then YAML, then ini."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pytest

from pytest_msprobe.engines.specification import (
    BENCH_FORMS,
    DEVICE_FORMS,
    DeviceSpecification,
    parse_bench,
    parse_device,
)

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DEFAULT_MEMORY_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a run was asked to do.

    Attributes:
        dumps: dump.json files, absolute, in the order in which they are checked.
        out: folder of the CSV pair.
        device, bench, bench_python: who is tested, against what, and with which interpreter.
        seed: of random inputs.
        max_memory_bytes: an API call that may need more is skipped.
        cosine, max_abs: bounds of the default standard.
    """

    dumps: tuple[Path, ...]
    out: Path
    device: DeviceSpecification
    bench: str
    bench_python: str | None
    seed: int
    max_memory_bytes: int
    cosine: float
    max_abs: float


@dataclass(frozen=True, slots=True)
class Option:
    """One setting under its three names: `--msprobe-NAME`, ini `msprobe_NAME`, YAML key `NAME` (with underscores)."""

    name: str
    metavar: str
    help: str
    default: str
    parse: Callable[[str], Any]

    @property
    def flag(self) -> str:
        """On the command line."""
        return f"--msprobe-{self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        """In ini files and in pytest's option namespace."""
        return f"msprobe_{self.name}"


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match["number"]) == 0:
        raise ValueError(f"{text!r} is no size; use a number with KB, MB, GB or TB, such as 16GB")
    return int(float(match["number"]) * _UNITS[match["unit"].upper()])


def _memory(text: str) -> int:
    if text == "auto":
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _DEFAULT_MEMORY_SHARE)
    return _size(text)


def _seed(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is no whole number from 0 on")
    return int(text)


def _cosine(text: str) -> float:
    value = _number(text)
    if not -1 <= value < 1:
        raise ValueError(f"{text!r} is no cosine bound; use a number from -1 up to, but not, 1")
    return value


def _positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r} is not above 0")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


def _interpreter(text: str) -> str | None:
    if text and not os.access(text, os.X_OK):
        raise ValueError(f"{text!r} is no executable file; give the path of a Python interpreter")
    return text or None


OPTIONS = (
    Option("out", "DIR", "folder of the CSV pair, created when absent", ".", Path),
    Option("device", "DEVICE", f"what is tested: {DEVICE_FORMS}", "auto", parse_device),
    Option("bench", "BENCH", f"float64 CPU benchmark: {BENCH_FORMS}", "auto", parse_bench),
    Option(
        "bench_python", "FILE", "Python interpreter that runs the benchmark in a process of its own", "", _interpreter
    ),
    Option("seed", "N", "seed of random inputs, for dumps that hold statistics only", "0", _seed),
    Option(
        "max_memory",
        "SIZE",
        "skip an API call that may need more, e.g. 16GB; auto is 80 %% of this machine",
        "auto",
        _memory,
    ),
    Option("cosine", "X", "default standard: the cosine must be above X", "0.99", _cosine),
    Option("max_abs", "X", "default standard: the maximum absolute error must be below X", "1e-4", _positive),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option with its ini twin."""
    group = parser.getgroup("msprobe", "pytest-msprobe: the dump of a training step as a test suite")
    group.addoption(
        "--msprobe-dump",
        action="append",
        metavar="PATH",
        help="dump.json, or a folder to search for dump.json files; may be repeated",
    )
    parser.addini("msprobe_dump", "dumps to check: files or folders", type="paths", default=[])
    group.addoption(
        "--msprobe-config", metavar="FILE", help="YAML file with any of these options as keys (out, device, ...)"
    )
    parser.addini("msprobe_config", "YAML file with settings of pytest-msprobe", default="")
    for option in OPTIONS:
        shown = option.default or "none"
        group.addoption(option.flag, metavar=option.metavar, help=f"{option.help} (default: {shown})")
        parser.addini(option.key, option.help.replace("%%", "%"), default="")


def read_settings(config: pytest.Config) -> Settings:
    """The settings of this run.

    Raises:
        pytest.UsageError: an option, ini or YAML value is wrong; one sentence with its name, value and what is allowed.
    """
    yaml_values = _read_yaml(config)
    values = {option.name: _value(option, config, yaml_values) for option in OPTIONS}
    return Settings(
        dumps=_find_dumps(config, yaml_values),
        out=Path(os.path.abspath(values["out"])),
        device=values["device"],
        bench=values["bench"],
        bench_python=values["bench_python"],
        seed=values["seed"],
        max_memory_bytes=values["max_memory"],
        cosine=values["cosine"],
        max_abs=values["max_abs"],
    )


def _value(option: Option, config: pytest.Config, yaml_values: dict[str, Any]) -> Any:
    sources = (
        (option.flag, config.getoption(option.key)),
        (f"key {option.name!r} of --msprobe-config", yaml_values.get(option.name)),
        (f"ini option {option.key}", config.getini(option.key) or None),
    )
    origin, text = next(((origin, text) for origin, text in sources if text is not None), ("", option.default))
    try:
        return option.parse(str(text))
    except ValueError as error:
        raise pytest.UsageError(f"{origin}: {error}") from None


def _read_yaml(config: pytest.Config) -> dict[str, Any]:
    name = config.getoption("msprobe_config") or config.getini("msprobe_config")
    if not name:
        return {}
    import yaml

    path = Path(os.path.abspath(name)) if config.getoption("msprobe_config") else config.rootpath / name
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise pytest.UsageError(f"--msprobe-config={name}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"--msprobe-config={name}: is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise pytest.UsageError(f"--msprobe-config={name}: expected keys and values, found {type(content).__name__}")
    known = ["dump", *(option.name for option in OPTIONS)]
    for key in content:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise pytest.UsageError(f"--msprobe-config={name}: unknown key {key!r}; {hint}")
    return {**content, "dump": _yaml_dumps(content.get("dump"), path)}


def _yaml_dumps(value: Any, path: Path) -> list[Path]:
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise pytest.UsageError(
            f"--msprobe-config={path}: key 'dump': expected a path or a list of paths, found {value!r}"
        )
    return [path.parent / name for name in names]


def _find_dumps(config: pytest.Config, yaml_values: dict[str, Any]) -> tuple[Path, ...]:
    named = config.getoption("msprobe_dump")
    given = (
        [config.invocation_params.dir / name for name in named]
        if named
        else yaml_values.get("dump") or config.getini("msprobe_dump")
    )
    found: dict[Path, None] = {}
    for path in given:
        found.update(dict.fromkeys(_dump_files(Path(os.path.abspath(path)))))
    return tuple(found)


def _dump_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise pytest.UsageError(f"--msprobe-dump={path}: there is no such file or folder")
    # A tensor folder can hold 100,000 files; it never holds a dump.json.
    found = [Path(folder) / "dump.json" for folder, _, files in _walk(path) if "dump.json" in files]
    if not found:
        raise pytest.UsageError(f"--msprobe-dump={path}: holds no dump.json; give a dump, step or rank folder")
    return sorted(found, key=_natural)


def _walk(path: Path) -> Any:
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if name != "dump_tensor_data"]
        yield folder, folders, files


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key that puts step2 before step10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path))]
