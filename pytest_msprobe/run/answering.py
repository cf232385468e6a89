"""The answer of a run, on the one process that writes: from the suite's report, and what no row says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest
from msgspec import structs

from msprobe_collector.dump_format.manifest import StepError
from msprobe_collector.dump_format.values import optional, printable
from pytest_msprobe.answers import About, Answer, Finding, Gap, Place, RowFacts, RunRows, file, with_findings, with_open
from pytest_msprobe.answers.about import about_of
from pytest_msprobe.reports import sarif
from pytest_msprobe.run.settings import ENDED, Settings
from pytest_msprobe.run.unjudged import Unjudged
from pytest_msprobe.suites.contract import Suite, SuiteReport
from pytest_msprobe.support import place_of
from pytest_msprobe.verdicts import RowCounts

#: Options that name what the judged dumps are held to.
_SIDES = ("gradients", "golden", "logical", "exact")
#: Options of pytest with which only a part of the items runs, by their names in its configuration.
_SELECTING = {"keyword": "-k", "markexpr": "-m", "deselect": "--deselect", "lf": "--lf"}

#: The files of an answer: option that names it, title and form.
_FORMS = (("diagnosis", "answer", file), ("sarif", "SARIF", sarif))


def write_refusal(config: pytest.Config, reason: str) -> None:
    """Write the answer of a run that cannot begin, or has not ended, into the files that the command line names.

    A run that is killed leaves it, and no answer of an earlier run.
    """
    if hasattr(config, "workerinput"):
        return
    suite = str(config.getoption("msprobe_suite") or "auto")
    for option, _, form in _FORMS:
        if name := config.getoption(f"msprobe_{option}", None):
            _write_unjudged(Path(os.path.abspath(config.invocation_params.dir / name)), form, suite, reason)


def _write_unjudged(path: Path, form: ModuleType, suite: str, reason: str) -> None:
    first = reason.splitlines()[0] if reason else "the run could not begin"
    answer = Answer(suite=suite, outcome="nothing judged", open=(Gap(kind="refused", reason=first),))
    with suppress(OSError):  # the reason is on the terminal, and is what must be mended first
        form.write_answer(path, answer)


class RunAnswering:
    """Collects what a run amounts to.

    Attributes:
        files: to write: name, path and form, by the option as the command line has it.
        rows: what is told each row of the run that does not simply pass.
    """

    def __init__(self, config: pytest.Config, settings: Settings, suite: Suite, counts: RowCounts) -> None:
        """For a run of `suite`, whose rows `counts` counts.

        Raises:
            pytest.UsageError: another file stands where the answer is to be written.
        """
        self.files: dict[str, tuple[str, Path, ModuleType]] = {}
        for option, title, form in _FORMS:
            if (path := getattr(settings, option)) is not None:
                self.files[f"--msprobe-{option}={path}"] = title, path, form
        self._config = config
        self._shard = settings.shard
        self._is_strict = settings.is_strict
        self._unread: dict[str, str] = {}
        targets = list(map(attrgetter("path"), settings.folders)) or suite.files
        self.rows = RunRows(
            RowFacts(
                suite=suite.name,
                item_noun="records" if " by " in suite.item_noun else suite.item_noun,
                arguments=tuple(map(str, config.invocation_params.args)),
                about=(*map(about_of, targets), *_references(settings)),
                passing=suite.passing,
                limits=suite.limits(),
                certainty=suite.certainty,
                excuses=suite.excuses,
                answer=_shown(config, settings),
                keyword=str(config.getoption("keyword", "") or ""),
                is_selected=bool(self.why_partial()),
            ),
            counts,
        )
        for option, (_, path, form) in self.files.items():
            try:
                form.check_replaceable(path)
            except OSError as error:
                raise pytest.UsageError(f"{option}: {error.strerror or error}") from None
        self.refuse("the run has not ended")

    def refuse(self, reason: str) -> None:
        """Write that nothing is judged, for this reason, into all of `files`."""
        for _, path, form in self.files.values():
            _write_unjudged(path, form, self.rows.facts.suite, reason)

    def add_unread(self, path: str, reason: str) -> None:
        """Take a file or folder that could not be collected."""
        place, lines = path or "the run", reason.strip().splitlines()
        why = lines[-1].strip() if lines else "cannot be read"
        self._unread.setdefault(place, why if place in why else f"{place}: {why}")

    def why_partial(self, missing: int = 0) -> list[str]:
        """Why the rows are not those of all items, one reason each; `missing` did not run."""
        selecting = [option for name, option in _SELECTING.items() if self._config.getoption(name, None)]
        reasons = (
            self._shard and "shard {}/{}".format(*self._shard),
            optional("{} left items out", " and ".join(selecting)),
            optional("it ended before {} of them", missing),
        )
        return list(filter(None, reasons))

    def complete(
        self,
        report: SuiteReport,
        *,
        fault: str,
        known_of_run: frozenset[str],
        unjudged: Unjudged | None,
        is_judged: bool,
        missing: int,
    ) -> Answer:
        """Make the answer, once all rows are in.

        Args:
            report: of the suite.
            fault: why the run is no success although no item failed; "" where it is, or where a baseline knows it.
            known_of_run: what a baseline knows of the run as a whole.
            unjudged: what was given and is not judged.
            is_judged: False where the verdicts are none on what was to be tested.
            missing: items that did not run.
        """
        self.rows.known = known_of_run
        answer = self._of_suite(report)
        if not is_judged and answer.outcome == "right":
            answer = structs.replace(answer, outcome="nothing judged")
            if untested := report.untested():
                answer = with_open(answer, [Gap(kind="untested", reason=untested)])
        findings = list(map(_damaged, self._unread.values()))
        if unjudged is not None:
            findings += map(_ended, unjudged.ended)
            findings += map(_damaged, (*unjudged.lost(), *unjudged.damage))
            if compiled := dict.fromkeys(map(str, chain(*unjudged.compiled.values()))):
                gap = Gap(kind="compiled", what=", ".join(compiled), count=len(compiled))
                answer = with_open(answer, [gap])
        if fault and not answer.findings:
            findings.append(_of_run("incomplete", fault))
        answer = with_findings(answer, findings)
        if missing:
            answer = with_open(answer, [Gap(kind="unfinished", count=missing, noun=self.rows.facts.item_noun)])
        if ENDED in self._config.stash:
            answer = with_open(answer, [Gap(kind="refused", reason=self._config.stash[ENDED])])
        if self._is_strict and answer.outcome == "right" and answer.open:
            first = answer.open[0]
            place = Place(record="", operation=first.what)
            answer = with_findings(answer, [Finding(kind="not judged", place=place, count=len(answer.open))])
        return answer

    def _of_suite(self, report: SuiteReport) -> Answer:
        """The suite's own answer; where it cannot make one, what the rows say, and that it could not."""
        try:
            return report.answer(self.rows)
        except Exception as error:
            where = f"{type(error).__name__}: {error} ({place_of(error)})"
            failure = _of_run("run", f"internal error of pytest-msprobe while the answer was made: {where}")
            return with_findings(self.rows.answer(), [failure])

    def write(self, option: str, answer: Answer) -> None:
        """Write one of `files`. Raises OSError."""
        _, path, form = self.files[option]
        form.write_answer(path, answer)


def _references(settings: Settings) -> Iterator[About]:
    """What the judged dumps are held to."""
    for name in _SIDES:
        if isinstance(path := settings.values.get(name), Path):
            yield about_of(path, side="exact" if name == "exact" else "golden")


def _of_run(kind: str, detail: str) -> Finding:
    """A finding that is about the run as a whole."""
    return Finding(kind=kind, confidence="proved", place=Place(record="", operation=""), detail=printable(detail))


def _damaged(line: str) -> Finding:
    return _of_run("damaged", line)


def _ended(ending: tuple[Path, StepError]) -> Finding:
    """A step that ended in an exception."""
    error = ending[1]
    place = Place(record="", operation=error.kind, source=error.place)
    return Finding(kind="ended", confidence="proved", place=place, detail=error.message)


def _shown(config: pytest.Config, settings: Settings) -> str:
    """The file of the answer as it was given, "" without one."""
    return str(config.getoption("msprobe_diagnosis") or settings.diagnosis or "")
