"""The diagnosis of two dumps, in process: what a run of the comparison suite finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.engines.protocol import parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.suites.comparison.accounting.account import Account, AccountStep
from pytest_msprobe.suites.comparison.accounting.accountant import Accountant
from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis
from pytest_msprobe.suites.comparison.accounting.observed import observed
from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.contract import cells_of
from pytest_msprobe.suites.grouping import group_operations

_MEMORY = 8 * 1024**3


def diagnose(target: Path, golden: Path, *, observes: bool = False) -> RunDiagnosis:
    """The answer for two dump.json files; of tensors without computing anything again where it only `observes`."""
    comparison = DumpComparison(target, golden, ComparisonSettings())
    engines = Engines(EngineChoice(parse_device("recorded"), "torch", None))
    accountant = Accountant(comparison, engines, max_memory_bytes=_MEMORY)
    observes = observes or comparison.mode != "real"

    def account(found: OperationComparison) -> Account:
        return observed(found, comparison.limits) if observes else accountant.account(found)

    def step(operation: Operation, dump: Dump, found: OperationComparison) -> AccountStep:
        cells = cells_of(dump, operation.record, f"{operation.call}.forward")
        return AccountStep(operation, account(found), cells)

    def steps() -> Iterator[AccountStep]:
        for group in group_operations(comparison.target.operations):
            for operation in group.payload.by_part.values():
                yield step(operation, comparison.target, comparison.verdict(operation, for_account=not observes))
            accountant.close()
        for operation in comparison.matching.golden_only:
            yield step(operation, comparison.golden, comparison.golden_only(operation))

    found = sorted(steps(), key=lambda step: (step.account.place < 0, step.operation.index))
    return RunDiagnosis.of(found, (comparison.target, comparison.golden))
