"""The diagnosis of a run, on the one process that writes: from the suite's report, and what no row says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from msprobe_collector.dump_format.values import counted, printable
from pytest_msprobe.diagnosis import CannotSay, Diagnosis, RunFacts, RunRows
from pytest_msprobe.diagnosis.file import check_replaceable, write_diagnosis
from pytest_msprobe.diagnosis.from_rows import with_gaps
from pytest_msprobe.diagnosis.value import OUTCOMES, headline
from pytest_msprobe.run.settings import Settings
from pytest_msprobe.suites.contract import Suite, SuiteReport
from pytest_msprobe.support import place_of
from pytest_msprobe.verdicts import RowCounts

#: Options that name what the judged dumps are held to.
_SIDES = ("gradients", "golden", "logical")
#: Options of pytest with which only a part of the items runs, by their names in its configuration.
_SELECTING = {"keyword": "-k", "markexpr": "-m", "deselect": "--deselect", "lf": "--lf"}


def write_refusal(config: pytest.Config, reason: str) -> None:
    """Write the diagnosis of a run that cannot begin, or has not ended, where one was asked for.

    A run that is killed leaves it, and no answer of an earlier run.
    """
    name = config.getoption("msprobe_diagnosis", None)
    if not name or hasattr(config, "workerinput"):
        return
    path = Path(os.path.abspath(config.invocation_params.dir / name))
    suite = str(config.getoption("msprobe_suite") or "auto")
    first = reason.splitlines()[0] if reason else "the run could not begin"
    found = Diagnosis(
        suite=suite,
        outcome="not_judged",
        headline=headline("not_judged", first),
        cannot_say=(CannotSay("the run", first),),
    )
    try:
        write_diagnosis(path, found)
    except OSError:
        return  # the reason is on the terminal, and is what must be mended first


class RunDiagnosis:
    """Collects what a run amounts to.

    Attributes:
        path: of the file of --msprobe-diagnosis; None without one.
        option: as the command line has it.
        rows: what is told each row of the run that does not simply pass.
    """

    def __init__(self, config: pytest.Config, settings: Settings, suite: Suite, counts: RowCounts) -> None:
        """For a run of `suite`, whose rows `counts` counts.

        Raises:
            pytest.UsageError: another file stands where the diagnosis is to be written.
        """
        self.path = settings.diagnosis
        self.option = f"--msprobe-diagnosis={self.path}"
        self._config = config
        self._shard = settings.shard
        self._unread: dict[str, str] = {}
        self._found: Diagnosis | None = None
        named = [folder.path for folder in settings.folders] or list(suite.files)
        sides = [path for name in _SIDES if isinstance(path := settings.values.get(name), Path)]
        self.rows = RunRows(
            RunFacts(
                suite=suite.name,
                item_noun="records" if " by " in suite.item_noun else suite.item_noun,
                arguments=tuple(map(str, config.invocation_params.args)),
                dumps=tuple(str(path) for path in (*named, *sides)),
                passing=suite.passing,
                certainty=suite.certainty,
                excuses=suite.excuses,
                answer=_shown(config, settings),
                is_selected=bool(self.why_partial()),
            ),
            counts,
        )
        if self.path is not None:
            try:
                check_replaceable(self.path)
            except OSError as error:
                raise pytest.UsageError(f"{self.option}: {error.strerror or error}") from None

    def add_unread(self, path: str, reason: str) -> None:
        """Take a file or folder that could not be collected."""
        lines = [line.strip() for line in reason.splitlines() if line.strip()]
        self._unread.setdefault(path or "the run", lines[-1] if lines else "cannot be read")

    def why_partial(self, missing: int = 0) -> list[str]:
        """Why the rows are not those of all items, one reason each; `missing` did not run."""
        selecting = [option for name, option in _SELECTING.items() if self._config.getoption(name, None)]
        return [
            *([f"shard {self._shard[0]}/{self._shard[1]}"] if self._shard is not None else []),
            *([f"{' and '.join(selecting)} left items out"] if selecting else []),
            *([f"it ended before {missing} of them"] if missing else []),
        ]

    def complete(
        self,
        report: SuiteReport,
        *,
        fault: str,
        known: frozenset[str],
        gaps: Iterable[str],
        is_judged: bool,
        is_bad: bool,
        missing: int,
    ) -> Diagnosis:
        """Make the diagnosis, once all rows are in.

        Args:
            report: of the suite.
            fault: why the run is no success although no item failed; "" where it is, or where a baseline knows it.
            known: what a baseline knows of the run as a whole.
            gaps: what of the dumps could not be judged, one line each.
            is_judged: False where the verdicts are none on what was to be tested.
            is_bad: whether the run ends with an exit code that is no success.
            missing: items that did not run.
        """
        self.rows.known = known
        found = self._of_suite(report)
        unread = [CannotSay(path, reason) for path, reason in self._unread.items()]
        left = [CannotSay(*_parted(line)) for line in gaps]
        if missing:
            left.append(CannotSay(counted(missing, self.rows.facts.item_noun), "the run ended before them", missing))
        if fault and not found.at_fault:
            left.append(CannotSay("the run", fault))
        if not is_judged and found.outcome != "fault":
            reason = report.untested() or next((each.why for each in (*unread, *left, *found.cannot_say)), "")
            found = self.rows.made("not_judged", told=reason)
        said = {each.why for each in found.cannot_say}  # by the suite, of a folder that the collection refused as well
        found = with_gaps(found, [*(each for each in unread if each.why not in said), *left])
        if is_bad and found.outcome in OUTCOMES[2:4]:
            found = with_gaps(found, [CannotSay("the run", "it ended with an error, which the terminal shows")])
        self._found = found
        return found

    def _of_suite(self, report: SuiteReport) -> Diagnosis:
        """The suite's own answer; where it cannot make one, what the rows say, and that it could not."""
        try:
            return report.diagnosis(self.rows)
        except Exception as error:
            where = f"{type(error).__name__}: {error} ({place_of(error)})"
            found = self.rows.diagnosis()
            return with_gaps(found, [CannotSay("the diagnosis", f"internal error of pytest-msprobe: {where}")])

    @property
    def found(self) -> Diagnosis:
        """The diagnosis; only once it is complete."""
        assert self._found is not None
        return self._found

    def write(self) -> None:
        """Write the file, where one was asked for. Raises OSError."""
        if self.path is not None:
            write_diagnosis(self.path, self.found)


def _shown(config: pytest.Config, settings: Settings) -> str:
    """The file of the diagnosis as it was given, "" without one."""
    return str(config.getoption("msprobe_diagnosis") or settings.diagnosis or "")


def _parted(line: str) -> tuple[str, str]:
    """(what, why) of a line that begins with a path."""
    what, colon, why = printable(line).partition(": ")
    return (what, why) if colon else ("the run", line)
