"""Runs pytest once for each step of a diagnosis, and chooses the answer that explains the rest."""

from __future__ import annotations

import gc
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from pytest_msprobe.diagnose.planning import Step
from pytest_msprobe.diagnosis import CannotSay, Diagnosis, TakenStep
from pytest_msprobe.diagnosis.from_rows import headline_of, with_gaps
from pytest_msprobe.diagnosis.value import CONFIDENCES, headline

if TYPE_CHECKING:
    import pytest

#: Exit code of pytest that was interrupted.
INTERRUPTED = 2


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that has run.

    Attributes:
        step: which.
        code: exit code of pytest.
        diagnosis: its answer.
        rows: file of its rows; None where none were asked for.
    """

    step: Step
    code: int
    diagnosis: Diagnosis
    rows: Path | None = None


class StepRunner:
    """Runs steps, in this process where that is safe."""

    def __init__(self, folder: Path, out: Path | None, *, with_rows: bool, show: Callable[[str], None]) -> None:
        """A runner that keeps its files in `folder`, and results in `out`, where that is wanted.

        `show` is called with the state of a run, for a line that is replaced.
        """
        self._folder = folder
        self._out = out
        self._with_rows = with_rows
        self._show = show
        self._count = 0

    def run(self, step: Step) -> Ran:
        """Run one step to its end."""
        self._count += 1
        answer = self._folder / f"{self._count}.json"
        rows = self._folder / f"{self._count}.jsonl" if self._with_rows else None
        out = self._out or self._folder / f"out{self._count}"
        arguments = [*step.arguments, f"--msprobe-diagnosis={answer}", f"--msprobe-out={out}", "-q", "--tb=no"]
        arguments += [f"-pno:{name}" for name in _UNUSED]
        # Capturing costs a tenth where thousands of records are compared and nothing is computed.
        arguments += [] if step.computes else ["--capture=no"]
        arguments += [f"--msprobe-jsonl={rows}"] if rows is not None else []
        if step.suite == "comparison" and self._out is None:  # nobody would see the table
            arguments += ["--msprobe-table=off"]
        code, said = self._in_process(step, arguments) if step.in_process else _apart(arguments)
        return Ran(step, code, _read(answer, step, said), rows if rows is not None and rows.exists() else None)

    def _in_process(self, step: Step, arguments: Sequence[str]) -> tuple[int, str]:
        import pytest

        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said), _fewer_collections():
            code = pytest.main([*arguments], plugins=[_Watcher(step.suite, self._show)])
        return int(code), said.getvalue()


@contextmanager
def _fewer_collections() -> Iterator[None]:
    """Collect garbage less often: the nodes of a run live to its end, and would be scanned many times."""
    usual = gc.get_threshold()
    gc.set_threshold(20_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


#: Plugins of pytest without options that an ini file may have. One collects garbage at the end, to no use here.
_UNUSED = ("cacheprovider", "unraisableexception", "threadexception")
#: Plugins of pytest and of others that wrap each phase of each item, and see nothing in items of ours.
_IDLE = (
    *("warnings", "faulthandler", "setuponly", "assertion", "subtests", "tmpdir", "unittest"),
    *("hypothesispytest",),
)


class _Watcher:
    """A pytest plugin that says how far a run is, and takes out plugins that only cost here."""

    def __init__(self, suite: str, show: Callable[[str], None]) -> None:
        self._suite = suite
        self._show = show
        self._done = 0
        self._session: pytest.Session | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        """Take plugins out once their options have been read, which an ini file may have."""
        for name in _IDLE:
            if config.pluginmanager.has_plugin(name):
                config.pluginmanager.unregister(name=name)
        if config.option.capture == "no" and config.pluginmanager.has_plugin("capturemanager"):
            config.pluginmanager.unregister(name="capturemanager")

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Learn how many items there are."""
        self._session = session

    def pytest_runtest_logfinish(self) -> None:
        """Count an item."""
        self._done += 1
        total = self._session.testscollected if self._session is not None else 0
        if self._done % max(1, total // 50) == 0:
            self._show(f"{self._suite}: {self._done} of {total}")


def _apart(arguments: Sequence[str]) -> tuple[int, str]:
    """A process of its own: what runs on a device may crash."""
    command = [sys.executable, "-m", "pytest", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    return ended.returncode, ended.stdout + ended.stderr


def _read(answer: Path, step: Step, said: str) -> Diagnosis:
    try:
        found = msgspec.json.decode(answer.read_bytes(), type=Diagnosis)
    except (OSError, msgspec.DecodeError):
        lines = [line for line in said.splitlines() if line.startswith("ERROR")] or said.strip().splitlines()
        why = lines[-1] if lines else "pytest ended without an answer"
        return Diagnosis(
            suite=step.suite,
            outcome="not_judged",
            headline=headline("not_judged", why),
            cannot_say=(CannotSay("the run", why),),
        )
    return found


def chosen(ran: Sequence[Ran]) -> Ran:
    """The run whose answer explains the rest.

    A fault that was computed goes before one that only differs first; where nothing is wrong the main step counts.
    """
    faults = [each for each in ran if each.diagnosis.outcome == "fault"]
    if faults:
        return min(faults, key=_rank)
    main = [each for each in ran if each.step.is_main] or list(ran)
    return min(main, key=lambda each: _OPEN.index(each.diagnosis.outcome))


_OPEN = ("unaccounted", "rounding", "equal", "not_judged", "fault")


def _rank(ran: Ran) -> tuple[int, bool, bool]:
    """Sort key: the surest first, of equal ones where NaN or Inf begin, then the main step."""
    sure = [CONFIDENCES.index(fault.confidence) for fault in ran.diagnosis.at_fault]
    return min(sure, default=len(CONFIDENCES)), ran.step.suite != "overflow", not ran.step.is_main


def summed_up(
    ran: Sequence[Ran], *, manifest: Sequence[str], gaps: Sequence[CannotSay], has_following_steps: bool = False
) -> Diagnosis:
    """The answer of all runs as one; `has_following_steps`: whether a step in the dump follows on another."""
    best = chosen(ran)
    # Rules on gradients never show that nothing is wrong.
    open_ones = [each for each in ran if each is not best and each.step.suite != "gradients"]
    open_ones = [each for each in open_ones if each.diagnosis.outcome in ("unaccounted", "not_judged")]
    taking = [each for each in open_ones if _takes_praise_back(each, best, has_following_steps=has_following_steps)]
    found = with_gaps(_with_calls_beside(best, ran), [_gap(each) for each in taking])
    beside = tuple(_gap(each) for each in open_ones if each not in taking)
    steps = [
        TakenStep(("pytest", *each.step.arguments), each.diagnosis.outcome, each.diagnosis.headline) for each in ran
    ]
    return structs.replace(
        found,
        manifest=(*manifest, *(line for line in found.manifest if line not in manifest)),
        cannot_say=(*gaps, *found.cannot_say, *beside),
        steps=tuple(steps),
    )


def _with_calls_beside(best: Ran, ran: Sequence[Ran]) -> Diagnosis:
    """The answer of `best`; of where NaN or Inf begin with the calls that lose what they are given, and the reverse."""
    pair = [each for each in ran if each.step.suite == "overflow" or each.step.beside_overflow]
    pair = [each for each in pair if each.diagnosis.outcome == "fault"]
    if len(pair) < 2 or best not in pair:
        return best.diagnosis
    records = {fault.record for fault in best.diagnosis.at_fault}
    others = (fault for each in pair for fault in each.diagnosis.at_fault if fault.record not in records)
    at_fault = (*best.diagnosis.at_fault, *others)
    return structs.replace(best.diagnosis, at_fault=at_fault, headline=headline_of("fault", at_fault))


#: Results of items that a praise never stands beside.
_DOUBTS = ("failed", "xfailed", "xpassed")
#: Suites that hold the values of a run to those of another one.
_HELD = ("comparison", "sharded")


def _takes_praise_back(open_one: Ran, best: Ran, *, has_following_steps: bool) -> bool:
    """Whether what a run left open keeps `best` from saying that nothing is wrong (docs/two_runs.md).

    It does where something failed. What was only skipped does not where `best` is about all that was recorded: a
    comparison holds every record to one that is right, and what holds from step to step cannot be judged where no step
    follows on another.
    """
    found = open_one.diagnosis
    if found.at_fault or any(found.counts.get(word) for word in _DOUBTS):
        return True
    if best.step.suite in _HELD:
        return not open_one.step.compares_steps and open_one.step.suite != "precheck"
    return not open_one.step.compares_steps or has_following_steps


def _gap(ran: Ran) -> CannotSay:
    return CannotSay(f"in the suite {ran.step.suite}", _why(ran.diagnosis))


def _why(found: Diagnosis) -> str:
    if not found.cannot_say:
        return found.headline.partition(": ")[2]
    first = found.cannot_say[0]
    return f"{first.what}: {first.why}"


def command_of(step: Step) -> str:
    """The command that repeats a step."""
    return shlex.join(("pytest", *step.arguments))
