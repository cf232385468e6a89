"""Options, ini and YAML, folded once into one frozen Settings. The command line wins, then YAML, then ini."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_msprobe import option_values
from pytest_msprobe.comparison.options import COMPARISON_OPTIONS, ComparisonSettings
from pytest_msprobe.dump_search import find_dumps
from pytest_msprobe.engines.specification import (
    BENCH_FORMS,
    DEVICE_FORMS,
    DeviceSpecification,
    parse_bench,
    parse_device,
)
from pytest_msprobe.gradients.options import GRADIENT_OPTIONS, GradientSettings
from pytest_msprobe.option import Option
from pytest_msprobe.overflow.options import OVERFLOW_OPTIONS, OverflowSettings
from pytest_msprobe.precheck.standard_choice import STANDARDS, StandardChoice, standard_name
from pytest_msprobe.settings_file import read_settings_file, settings_file


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a run was asked to do.

    Attributes:
        dumps: dump.json files, absolute, in the order in which they are checked.
        out: folder of the CSV pair.
        device, bench, bench_python: who is tested, against what, and with which interpreter.
        seed: of random inputs.
        max_memory_bytes: an API call that may need more is skipped.
        standard: name of the rule for verdicts.
        standards: what is judged by another one.
        cosine, max_abs: bounds of the default standard.
        html_passes: what becomes of passes on the HTML page: `fold`, `omit` or `show`.
        jsonl: file for machine rows, or None.
        timeout_seconds: how long a check in a worker may hang; 0 for ever, None for a limit that grows with its cost.
        resume: result file of an interrupted run to continue, or None.
        error_data, reproducers: folders for what failing calls leave behind, or None.
        error_data_limit_bytes: how much each of them may take.
        shard: (number, count) of the part of the API calls to check, or None for all.
        devices: ids that workers may use; empty for all that are visible.
        workers_per_device: how many workers may share one.
        remote_root: folder that stands for rootdir on other hosts, as they call it, or "".
        suite: how dumps become items, a key of `activation.SUITES`; "auto" is gradients or comparison where
            the options for those say so, else precheck.
        golden: dump or folder to compare with, or None.
        comparison: how two dumps are compared.
        overflow: how strict the overflow suite is.
        gradients: which gradients are judged, and how.
    """

    dumps: tuple[Path, ...]
    out: Path
    device: DeviceSpecification
    bench: str
    bench_python: str | None
    seed: int
    max_memory_bytes: int
    standard: str
    standards: StandardChoice
    cosine: float
    max_abs: float
    html_passes: str
    jsonl: Path | None
    resume: Path | None
    timeout_seconds: float | None
    error_data: Path | None
    reproducers: Path | None
    error_data_limit_bytes: int
    shard: tuple[int, int] | None
    devices: tuple[str, ...]
    workers_per_device: int
    remote_root: str
    suite: str
    golden: Path | None
    comparison: ComparisonSettings
    overflow: OverflowSettings
    gradients: GradientSettings


OPTIONS = (
    Option("out", "DIR", "folder of the CSV pair, created when absent", ".", Path),
    Option("device", "DEVICE", f"what is tested: {DEVICE_FORMS}", "auto", parse_device),
    Option("bench", "BENCH", f"float64 CPU benchmark: {BENCH_FORMS}", "auto", parse_bench),
    Option(
        "bench_python",
        "FILE",
        "Python interpreter that runs the benchmark in a process of its own",
        "",
        option_values.interpreter,
    ),
    Option("seed", "N", "seed of random inputs, for dumps that hold statistics only", "0", option_values.seed),
    Option(
        "max_memory",
        "SIZE",
        "skip an API call that may need more, e.g. 16GB; auto is 80 %% of this machine",
        "auto",
        option_values.memory,
    ),
    Option(
        "save_error_data",
        "",
        "save the values of every failing API call in a folder that is a dump",
        "",
        option_values.switch,
        bare="true",
    ),
    Option(
        "error_data_dir",
        "DIR",
        "that folder, which is then filled also without --msprobe-save-error-data",
        "error_data in --msprobe-out",
        option_values.error_data_folder,
    ),
    Option(
        "error_data_limit",
        "SIZE",
        "what --msprobe-save-error-data and --msprobe-reproducers may each take",
        "1GB",
        option_values.size,
    ),
    Option(
        "reproducers", "DIR", "write a script with its data for every failing API call", "", option_values.optional_path
    ),
    Option(
        "resume",
        "RESULT.csv",
        "continue the CSV pair of an interrupted run: run what has no complete row",
        "",
        option_values.optional_path,
    ),
    Option(
        "timeout",
        "SECONDS",
        "with -n only: end a check that hangs longer; 0 is never, auto grows with its cost",
        "auto",
        option_values.timeout,
    ),
    Option("shard", "I/N", "check part I of N, split by cost the same way on every host", "all", option_values.shard),
    Option("jsonl", "FILE", "write one JSON object per verdict into this new file", "", option_values.new_file),
    Option(
        "devices",
        "IDS",
        "device ids for the workers of -n, such as 4,5,6,7 or 0-3",
        "all visible",
        option_values.devices,
    ),
    Option("workers_per_device", "K", "how many workers may share a device", "1", option_values.count),
    Option(
        "remote_root",
        "DIR",
        "with --tx ssh=...: what stands for rootdir on hosts that have DIR; relative to where workers start there",
        "",
        str,
    ),
    Option("standard", "NAME", f"rule for verdicts: {', '.join(STANDARDS)}", STANDARDS[0], standard_name),
    Option("cosine", "X", "default standard: the cosine must be above X", "0.99", option_values.cosine),
    Option(
        "max_abs", "X", "default standard: the maximum absolute error must be below X", "1e-4", option_values.positive
    ),
    Option(
        "html_passes",
        "fold|omit|show",
        "passes on the page of --html: folded behind one click, left out, or shown; always counted",
        "fold",
        option_values.html_passes,
    ),
    Option(
        "suite",
        "NAME",
        "what is done: precheck, comparison, overflow, gradients; auto: by the other options",
        "auto",
        str,
    ),
    Option(
        "golden", "PATH", "compare the dumps with this dump.json or folder of dumps", "", option_values.optional_path
    ),
    *COMPARISON_OPTIONS,
    *OVERFLOW_OPTIONS,
    *GRADIENT_OPTIONS,
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
        kind: dict[str, Any] = {"metavar": option.metavar}
        if option.bare:
            kind = {"action": "store_const", "const": option.bare}
        group.addoption(option.flag, help=f"{option.help} (default: {shown})", **kind)
        parser.addini(option.key, option.help.replace("%%", "%"), default="")


def read_settings(config: pytest.Config) -> Settings:
    """The settings of this run.

    Raises:
        pytest.UsageError: an option, ini or YAML value is wrong; one sentence with its name, value and what is allowed.
    """
    yaml_values = read_settings_file(config, [option.name for option in OPTIONS])
    values = {option.name: _value(option, config, yaml_values) for option in OPTIONS}
    out = Path(os.path.abspath(values["out"]))
    error_data = values["error_data_dir"] or (out / "error_data" if values["save_error_data"] else None)
    return Settings(
        dumps=_told_dumps(config) or find_dumps(config, yaml_values),
        out=out,
        device=values["device"],
        bench=values["bench"],
        bench_python=values["bench_python"],
        seed=values["seed"],
        max_memory_bytes=values["max_memory"],
        standard=values["standard"],
        standards=yaml_values.get("standards") or StandardChoice(),
        cosine=values["cosine"],
        max_abs=values["max_abs"],
        html_passes=values["html_passes"],
        jsonl=values["jsonl"],
        resume=values["resume"],
        timeout_seconds=values["timeout"],
        error_data=error_data,
        reproducers=values["reproducers"],
        error_data_limit_bytes=values["error_data_limit"],
        shard=values["shard"],
        devices=values["devices"],
        workers_per_device=values["workers_per_device"],
        remote_root=values["remote_root"],
        suite=values["suite"],
        golden=values["golden"],
        comparison=ComparisonSettings.of(values),
        overflow=OverflowSettings.of(values),
        gradients=GradientSettings.of(values),
    )


def _told_dumps(config: pytest.Config) -> tuple[Path, ...]:
    """In a worker, what the process that hands out the work found, as this machine calls it."""
    return tuple(map(Path, getattr(config, "workerinput", {}).get("msprobe_dumps", ())))


def _value(option: Option, config: pytest.Config, yaml_values: dict[str, Any]) -> Any:
    sources = (
        (option.flag, config.getoption(option.key)),
        (f"{settings_file(config)}: key {option.name!r} of --msprobe-config", yaml_values.get(option.name)),
        (f"ini option {option.key}", config.getini(option.key) or None),
    )
    origin, text = next(((origin, text) for origin, text in sources if text is not None), ("", option.default))
    try:
        return option.parse(str(text))
    except ValueError as error:
        raise pytest.UsageError(f"{origin}: {error}") from None
