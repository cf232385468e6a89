"""The answer of a run, on the one process that writes: from the suite's report, and what no row says."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, filterfalse
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import structs

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.manifest import CompiledCode, StepError
from msprobe_collector.dump_format.values import counted, optional, printable
from pytest_msprobe.answers import About, Answer, Finding, Gap, Place, RowFacts, RunRows, file, with_findings, with_open
from pytest_msprobe.answers.file import about_of
from pytest_msprobe.answers.words import follows_from, sentence_of
from pytest_msprobe.reports import other_tools
from pytest_msprobe.run.dump_folders import DumpFolder
from pytest_msprobe.run.settings import ENDED, Settings, known_keys, near_key, path_of
from pytest_msprobe.suites.contract import Suite, SuiteReport
from pytest_msprobe.support import place_of
from pytest_msprobe.verdicts import Change, Outcome, RowCounts

_MOST_LINES = 10
_WITHOUT_DUMP = "holds no dump.json, and folders beside it do; dump it again, or name only those that have one"
_COMPILED = "calls inside of compiled code are not in the dump"


class Unjudged:
    """What is left out of a run, asked on the process that writes."""

    def __init__(self, config: pytest.Config, settings: Settings, suite: Suite, plain: Sequence[DumpFolder]) -> None:
        """For a run of `suite`; `plain` are the folders among the plain arguments."""
        self._config = config
        self._settings = settings
        self._suite = suite
        self._plain = plain

    @cached_property
    def gaps(self) -> list[str]:
        """What is missing of the dumps, one line each: a run with one is no success."""
        ended = (f"{path}: the step ended in {error}: what would follow it is missing" for path, error in self.ended)
        return [*self.damage, *ended]

    @cached_property
    def damage(self) -> list[str]:
        """What of the dumps is not whole, one line each."""
        lines = [f"{path}: {_WITHOUT_DUMP}" for folder in self._folders for path in folder.without_dump]
        empty = [folder for folder in self._folders if folder.empty_run is not None]
        lines += [f"{folder.path}: {folder.empty_run}; what lies there is of an earlier run" for folder in empty]
        for dump in self._suite.dumps():
            lines += dump.damage()
        return list(dict.fromkeys([*lines, *self._missing_ranks()]))

    def _missing_ranks(self) -> Iterator[str]:
        """Steps in the given folders that lack dumps of ranks; none where the folders of ranks were given."""
        steps: dict[Path, tuple[list[int], set[int | None]]] = {}
        for dump in self._suite.dumps():
            slot, step = Slot.of(dump.path), dump.path.parent.parent
            if slot.rank is not None and any(step.is_relative_to(folder.path) for folder in self._folders):
                steps.setdefault(step, (dump.ranks_of_step(), set()))[1].add(slot.rank)
        for step, (expected, there) in steps.items():
            missing = [rank for rank in expected if rank not in there]
            if missing:
                named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
                yield (
                    f"{counted(len(missing), 'ranks', 'are')} missing of {len(expected)} ({named}) in {step}; to judge "
                    "the others alone, name their folders"
                )

    @cached_property
    def compiled(self) -> dict[Path, tuple[CompiledCode, ...]]:
        """Functions and layers that ran as compiled code, by the dump.json of the step."""
        return {dump.path: dump.compiled for dump in self._suite.dumps() if dump.compiled}

    @cached_property
    def ended(self) -> list[tuple[Path, StepError]]:
        """The exceptions that ended steps, with the dump.json of each step."""
        return [(dump.path, dump.ended_in) for dump in self._suite.dumps() if dump.ended_in is not None]

    @cached_property
    def notes(self) -> list[str]:
        """What belongs to another run, or takes no part, one line each."""
        lines = list(chain.from_iterable(map(DumpFolder.others, self._folders)))
        lines += filter(None, map(attrgetter("lost"), self._suite.dumps()))
        for path, compiled in self.compiled.items():
            names = ", ".join(map(str, compiled))
            lines.append(f"{path}: {_COMPILED}: {names}; to judge them, dump a run without torch.compile")
        return list(dict.fromkeys([*lines, *self._unasked(), *_variables(), *self._hooks()]))

    def header(self) -> Iterator[str]:
        """The lines above a run."""
        yield from map("msprobe: not whole: {}".format, _first(self.gaps))
        yield from map("msprobe: not judged: {}".format, _first(self.notes))

    def fault(self) -> Iterator[str]:
        """Why the run is no success, as lines; none without a gap, and where nothing is run."""
        gaps = [*self.lost(), *self.gaps]
        if gaps and not self._config.option.collectonly:
            yield "not everything that was given could be judged, so this run is not a success:"
            yield from map("  {}".format, _first(gaps))

    @property
    def _folders(self) -> list[DumpFolder]:
        return [*self._settings.folders, *filterfalse(attrgetter("holds_python"), self._plain)]

    def _unasked(self) -> Iterator[str]:
        """Dumps among the tests in a plain folder."""
        for folder in self._plain:
            unasked = [dump for dump in folder.dumps if dump not in self._suite.files]
            if folder.holds_python and unasked:
                others = f" and {counted(len(unasked) - 1, 'more dumps')}" if len(unasked) > 1 else ""
                yield (
                    f"{unasked[0]}{others} in {folder.path}, which "
                    f"holds tests; to judge dumps there, name them with --msprobe-dump=PATH"
                )

    def lost(self) -> Iterator[str]:
        """Dumps that were given and that pytest was told not to collect."""
        paths = [path_of(self._config, argument) for argument in self._config.args]
        for root in self._suite.roots:
            if not any(path.is_relative_to(root) or root.is_relative_to(path) for path in paths):
                yield f"{root}: another plugin has replaced the arguments of pytest; leave out its option"

    def _hooks(self) -> Iterator[str]:
        """A conftest.py in the folder where pytest was started, and which it does not load."""
        path = self._config.invocation_params.dir / "conftest.py"
        is_off = getattr(self._config.known_args_namespace, "noconftest", False)
        if path.is_file() and not is_off and not self._config.pluginmanager.has_plugin(str(path)):
            yield f"{path}: pytest loads only those above its arguments; name the dump with --msprobe-dump=PATH instead"


def _variables() -> Iterator[str]:
    """Environment variables that look like options, which pytest reads from PYTEST_ADDOPTS only."""
    for name in sorted(os.environ):
        plain = name.removeprefix("PYTEST_")
        if plain.startswith("MSPROBE_") and (near := near_key(plain, known_keys(), cutoff=0.85)):
            yield f"environment variable {name}: options are not read from there; see {near} in the ini file"


def _first(lines: Sequence[str]) -> list[str]:
    shown = list(lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        shown.append(f"and {len(lines) - _MOST_LINES} more")
    return shown


#: Options that name what the judged dumps are held to.
_SIDES = ("gradients", "golden", "logical", "exact")
#: Options of pytest with which only a part of the items runs, by their names in its configuration.
_SELECTING = {"keyword": "-k", "markexpr": "-m", "deselect": "--deselect", "lf": "--lf"}

#: The files of an answer: option that names it, title and form.
_FORMS = (("diagnosis", "answer", file), ("sarif", "SARIF", other_tools))


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


def causes_of(answer: Answer) -> list[Finding]:
    """The findings whose items fail: what a set-up explains is its consequence, and has no failure of its own."""
    findings = list(filter(attrgetter("id"), answer.findings))
    return findings[:1] if findings and findings[0].kind in ("setting", "model") else findings


def outcomes_of(
    answer: Answer, following: Collection[str], excused: Mapping[str, str]
) -> dict[str, tuple[Outcome, str]]:
    """What items are, and why, by node id: those of causes fail, and those of `following` are expected to.

    So are those of `excused`, with their reasons.
    """
    causes = causes_of(answer)
    reasons = dict(excused)
    if causes:
        reasons |= dict.fromkeys(following, follows_from(causes[0]))
    outcomes: dict[str, tuple[Outcome, str]] = {node_id: ("xfailed", why) for node_id, why in reasons.items()}
    return outcomes | {finding.id: ("failed", sentence_of(finding)) for finding in causes}


def settle(session: pytest.Session, outcomes: Mapping[str, tuple[Outcome, str]]) -> dict[str, Change]:
    """Make the reports of a session at its end what the whole run shows; the changes, by node id.

    An item is judged alone, when the records that come after it, and perhaps those before it, are
    not known. Once all rows are in, the item of a cause may have been reported as passed, skipped,
    or as inheriting a difference, and what follows from it as failed. Reports change before pytest
    and other plugins write what they keep of them: the terminal's summary and counts, --lf, JUnit,
    pytest-html.

    Args:
        session: before others write what they keep of its reports.
        outcomes: what items are, and why, by node id.
    """
    manager = session.config.pluginmanager
    terminal: Any = manager.get_plugin("terminalreporter")
    last_failed: Any = manager.get_plugin("lfplugin")
    changes: dict[str, Change] = {}
    for before in _BEFORE if terminal is not None else ():
        reports = terminal.stats.get(before, [])
        for report in [report for report in reports if getattr(report, "nodeid", "") in outcomes]:
            after, text = outcomes[report.nodeid]
            # What passes or is skipped inherits nothing that fails.
            if after == before or report.nodeid in changes or (after == "xfailed" and before != "failed"):
                continue
            reports.remove(report)
            terminal.stats.setdefault(after, []).append(report)
            _become(report, after, text)
            session.testsfailed += 1 if after == "failed" else -1
            changes[report.nodeid] = Change(before, after, text)
            if last_failed is not None:
                last_failed.lastfailed.pop(report.nodeid, None)
                if after == "failed":
                    last_failed.lastfailed[report.nodeid] = True
    return changes


#: Lists of the terminal whose reports may become others.
_BEFORE: tuple[Outcome, ...] = ("xfailed", "passed", "skipped", "failed")


def _become(report: pytest.TestReport, outcome: Outcome, text: str) -> None:
    report.longrepr = text
    if outcome == "failed":
        report.outcome = "failed"
        report.__dict__.pop("wasxfail", None)
    else:
        report.outcome = "skipped"
        report.wasxfail = text
