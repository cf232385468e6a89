"""Comparing from a script, with the calls that scripts know. Nothing of pytest is used."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.suites.comparison.operations import DumpComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.report import ComparisonOutput, Divergence, RecordSummary
from pytest_msprobe.suites.comparison.sides import find_files, pair_dumps, why_no_dump
from pytest_msprobe.suites.comparison.table import merge_steps, rows

_TARGET_KEYS = ("npu_json_path", "npu_path", "target_path")
_GOLDEN_KEYS = ("bench_json_path", "bench_path", "golden_path")
_PRINTS = "is_print_compare_log"
_OTHER_KEYS = ("stack_json_path", "stack_path", _PRINTS)
#: What the existing tool takes for dumps of kernels.
_KERNEL_KEYS = ("rank_id", "step_id")


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """What one pair of dumps came to.

    Attributes:
        target, golden: the dumps.
        divergence: counts, and the first value that differs; `lines()` puts them into words.
        files: table and advice.
    """

    target: Path
    golden: Path
    divergence: Divergence
    files: tuple[Path, ...]

    @property
    def agrees(self) -> bool:
        """Whether every value of both dumps was compared and agrees."""
        return self.divergence.is_complete and self.divergence.first is None


@dataclass(frozen=True, slots=True)
class DistributedResult:
    """What the pairs of two folders came to.

    Attributes:
        results: one per pair of dumps, in the order of steps and ranks.
        problems: a sentence for every dump that was not compared.
        merged: files with all ranks of a step side by side, where it has two or more.
    """

    results: tuple[ComparisonResult, ...]
    problems: tuple[str, ...]
    merged: tuple[Path, ...]

    @property
    def agrees(self) -> bool:
        """Whether everything was compared and agrees."""
        return not self.problems and all(map(attrgetter("agrees"), self.results))


def compare(
    input_param: Mapping[str, Any],
    output_path: str | Path = "./output",
    stack_mode: bool = True,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
    *,
    settings: ComparisonSettings | None = None,
) -> ComparisonResult:
    """Compare two dump.json files and write the table, with advice when `auto_analyze`, into `output_path`.

    Prints where the files are and, when `is_print_compare_log` is true, a line for each value.

    `input_param` names the dumps as `npu_json_path` and `bench_json_path` (or `npu_path` and `bench_path`). Its key
    `stack_json_path`, and `stack_mode`, have no effect: stack.json is taken from beside the target, and the column is
    always there. `settings` has everything that the options of a pytest run have.

    Raises:
        DumpError: a dump cannot be read or compared, or no operation matched; the table is written then.
        MappingError: a mapping file is not what it should be.
        ValueError: `input_param` lacks a path or has an unknown key.
        OSError: a file cannot be written.
    """
    known_keys = (*_TARGET_KEYS, *_GOLDEN_KEYS, *_OTHER_KEYS)
    for key in input_param:
        if key in _KERNEL_KEYS:
            raise ValueError(f"input_param: key {key!r} is for dumps of kernels, which nothing here compares")
        if key not in known_keys:
            raise ValueError(f"input_param: unknown key {key!r}; known are {', '.join(known_keys)}")
    target, golden = _path(input_param, _TARGET_KEYS), _path(input_param, _GOLDEN_KEYS)
    chosen = _settings(settings, fuzzy_match)
    prints = input_param.get(_PRINTS, False)
    if not isinstance(prints, bool):
        raise ValueError(f"input_param: {_PRINTS} is {prints!r}, neither True nor False")
    return _compare_pair(target, golden, Path(output_path), chosen, auto_analyze, targets=[target], prints=prints)


def compare_distributed(
    npu_dump_dir: str | Path,
    bench_dump_dir: str | Path,
    output_path: str | Path = "./output",
    *,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
    settings: ComparisonSettings | None = None,
    is_print_compare_log: bool = False,
    **_others: Any,
) -> DistributedResult:
    """Compare all ranks (and steps) of two folders, paired by number, and put the ranks of each step side by side.

    Prints where the files are and, with `is_print_compare_log`, a line for each value. A dump that has no partner,
    cannot be read or has no operation in common is a problem of the result; the others are compared. Other keywords of
    the existing function are taken and have no effect.

    Raises:
        MappingError: a mapping file is not what it should be.
        ValueError: a folder holds no dump.
        OSError: a file cannot be written.
    """
    targets = find_files(Path(npu_dump_dir))
    for folder, dumps in ((npu_dump_dir, targets), (bench_dump_dir, find_files(Path(bench_dump_dir)))):
        if not dumps:
            raise ValueError(f"{folder}: {why_no_dump(Path(folder))}")
    pairs = pair_dumps(targets, Path(bench_dump_dir))
    chosen = _settings(settings, fuzzy_match)
    results, problems = [], pairs.lone()
    for target, golden in pairs.matched:
        try:
            folder, prints = Path(output_path), is_print_compare_log
            results.append(_compare_pair(target, golden, folder, chosen, auto_analyze, targets=targets, prints=prints))
        except DumpError as error:
            problems.append(str(error))
    merged = merge_steps([result.files[0] for result in results], Path(output_path))
    _show(f"all ranks: {path}" for path in merged)
    return DistributedResult(tuple(results), tuple(problems), tuple(merged))


def _compare_pair(
    target: Path,
    golden: Path,
    folder: Path,
    settings: ComparisonSettings,
    with_advice: bool,
    *,
    targets: list[Path],
    prints: bool,
) -> ComparisonResult:
    comparison = DumpComparison(target, golden, settings)
    output = ComparisonOutput(target, Divergence())
    for verdict in comparison.verdicts():
        if prints:
            _show(f"{value.name}: {value.status} {value.message}".rstrip() for value in verdict.values)
        output.divergence.add(RecordSummary.of(verdict))
        lines = rows(verdict, comparison.mode, settings.result_column)
        output.add(verdict.order, verdict.operation.record, lines)
    try:
        files = output.write(folder, comparison, settings, targets=targets)
        if with_advice:
            files += output.write_advice(output.divergence.answer())
    finally:
        output.close()
    for path in files:
        kind = "advice" if path.suffix == ".txt" else "table"
        _show([f"{kind}: {path}"])
    if output.divergence.is_unmatched:
        raise DumpError(output.divergence.why_unmatched, file=str(target))
    return ComparisonResult(target, golden, output.divergence, tuple(files))


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{printable(line)}\n")


def _settings(settings: ComparisonSettings | None, fuzzy: bool) -> ComparisonSettings:
    chosen = settings or ComparisonSettings()
    return replace(chosen, fuzzy=chosen.fuzzy or fuzzy)


def _path(parameters: Mapping[str, Any], keys: tuple[str, ...]) -> Path:
    value = next((parameters[key] for key in keys if parameters.get(key)), None)
    if value is None:
        raise ValueError(f"input_param: key {keys[0]!r} is missing; give the path of a dump.json")
    return Path(value)
