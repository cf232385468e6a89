"""The diagnosis of two dumps, in process: what a run of the comparison suite finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_msprobe.engines.protocol import parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.suites.comparison.accounting.account import Step
from pytest_msprobe.suites.comparison.accounting.accountant import Accountant
from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis
from pytest_msprobe.suites.comparison.operations import DumpComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.grouping import group_operations

_MEMORY = 8 * 1024**3


def diagnose(target: Path, golden: Path) -> RunDiagnosis:
    """The answer for two dump.json files."""
    comparison = DumpComparison(target, golden, ComparisonSettings())
    engines = Engines(EngineChoice(parse_device("recorded"), "torch", None))
    accountant = Accountant(comparison, engines, max_memory_bytes=_MEMORY)

    def steps() -> Iterator[Step]:
        for group in group_operations(comparison.target.operations):
            for operation in group.payload.by_part.values():
                yield Step(operation, accountant.account(comparison.verdict(operation, for_account=True)))
            accountant.close()
        for operation in comparison.matching.golden_only:
            yield Step(operation, accountant.account(comparison.golden_only(operation)))

    found = sorted(steps(), key=lambda step: (step.account.place < 0, step.operation.index))
    return RunDiagnosis.of(found, (comparison.target, comparison.golden))
