"""A pytest plugin: a skip that expected_skips.txt does not list fails, so that no test is lost unseen.

The file consists of blocks, with an empty line between them and comments after `#`:

    reason: could not import 'torch'*         of the skip; * stands for any text; may be repeated
    when: no module torch                     where it is expected; without this line everywhere
    test: tests/unit/engines/test_a.py::*     node id without parameters, * as above; may be repeated
    [x0-Mint.add]                             parameters of the test above; without such lines all of them

Conditions: `no module A B` (one of them is not installed), `no command A B`, `no variable A`, `root`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

#: Beside PATH: where Debian keeps servers, which PATH of users leaves out.
_FOLDERS = os.pathsep.join(filter(None, [os.environ.get("PATH"), "/usr/sbin"]))
_CONDITIONS = {
    "no module": lambda names: any(importlib.util.find_spec(name) is None for name in names),
    "no command": lambda names: any(shutil.which(name, path=_FOLDERS) is None for name in names),
    "no variable": lambda names: any(not os.environ.get(name) for name in names),
    "root": lambda names: os.geteuid() == 0,
}


@dataclass
class Block:
    """Skips that are expected for the same reasons.

    Attributes:
        line: where it begins in the file.
        reasons: patterns; one of them fits.
        holds: whether its condition is met here.
        tests: pattern of the test, and which of its parameters; none for all.
    """

    line: int
    reasons: list[re.Pattern[str]] = field(default_factory=list)
    holds: bool = True
    tests: list[tuple[re.Pattern[str], set[str]]] = field(default_factory=list)

    def finds(self, node_id: str, reason: str) -> tuple[int, int, str] | None:
        """What lists this skip: the line of the block, the number of the test, the parameters; None when nothing."""
        if not self.holds or not any(pattern.fullmatch(reason) for pattern in self.reasons):
            return None
        test, bracket, parameters = node_id.partition("[")
        for number, (pattern, wanted) in enumerate(self.tests):
            if pattern.fullmatch(test) and (not wanted or bracket + parameters in wanted):
                return self.line, number, bracket + parameters if wanted else ""
        return None

    def entries(self) -> Iterator[tuple[tuple[int, int, str], str]]:
        """Everything that `finds` may give, with its text for people."""
        for number, (pattern, wanted) in enumerate(self.tests):
            for parameters in sorted(wanted or {""}):
                test = pattern.pattern.replace("\\", "").replace(".*", "*")
                yield (self.line, number, parameters), f"line {self.line}: {test}{parameters}"


def read_blocks(file: Path) -> list[Block]:
    """The blocks of the file. ValueError for a line that is none of the four kinds, or a block without a test."""
    blocks: list[Block] = []
    is_inside = False
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        key, _, value = line.partition(": ")
        if line.startswith("#"):
            continue
        if not line:
            is_inside = False
            continue
        if not is_inside:
            blocks.append(Block(number))
            is_inside = True
        block = blocks[-1]
        if key == "reason":
            block.reasons.append(_pattern(value))
        elif key == "when":
            name = next((name for name in _CONDITIONS if f"{value} ".startswith(f"{name} ")), None)
            if name is None:
                raise ValueError(f"{file.name}, line {number}: the condition is none of {', '.join(_CONDITIONS)}")
            block.holds = _CONDITIONS[name](value.removeprefix(name).split())
        elif key == "test":
            block.tests.append((_pattern(value), set()))
        elif line.startswith("[") and block.tests:
            block.tests[-1][1].add(line)
        else:
            raise ValueError(f"{file.name}, line {number}: neither reason:, when:, test: nor [parameters] of a test")
    incomplete = [block.line for block in blocks if not block.reasons or not block.tests]
    if incomplete:
        raise ValueError(f"{file.name}: the block at line {incomplete[0]} needs a reason: and a test:")
    return blocks


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


class ExpectedSkips:
    """The plugin, one in each process of a run. It leaves alone what stands in no Python file, such as a dump."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._blocks = read_blocks(file)
        self._used: set[tuple[int, int, str]] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._judge(report)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        self._judge(report)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """Name the lines that nothing needs, after a run of all tests."""
        option = config.option
        if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or option.keyword or option.markexpr:
            return
        if getattr(option, "lf", False) or option.collectonly or terminalreporter.stats.get("failed"):
            return
        for block in self._blocks:
            for entry, text in block.entries():
                if block.holds and entry not in self._used:
                    terminalreporter.write_line(f"{self._file.name}, {text}: nothing was skipped so", yellow=True)

    def _judge(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Make a failure of a skip that is not listed."""
        reason = reason_of_skip(report)
        if reason is None or self._find(report.nodeid, reason) is not None:
            return
        test, bracket, parameters = report.nodeid.partition("[")
        report.outcome = "failed"
        lines = [f"reason: {reason.strip()}", f"test: {test}", f"{bracket}{parameters}"]
        report.longrepr = f"skipped, which {self._file.name} does not expect:\n" + "\n".join(filter(None, lines))

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = reason_of_skip(report)
        found = None if reason is None else self._find(report.nodeid, reason)
        if found is not None:
            self._used.add(found)

    def _find(self, node_id: str, reason: str) -> tuple[int, int, str] | None:
        return next((found for block in self._blocks if (found := block.finds(node_id, reason))), None)


def reason_of_skip(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Why a test or a module was skipped; None when it was not, or by an xfail mark."""
    if not report.skipped or hasattr(report, "wasxfail") or not report.nodeid.partition("::")[0].endswith(".py"):
        return None
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
