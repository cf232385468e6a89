"""Plans which suites a diagnosis runs, runs pytest once for each, and chooses the answer that explains the rest."""

from __future__ import annotations

import gc
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from pytest_msprobe.answers import CONFIDENCES, Answer, Gap, TakenStep, with_findings
from pytest_msprobe.diagnose.looking import Holding, of_one_model
from pytest_msprobe.numerics.expected import Share
from pytest_msprobe.suites.registry import SUITES

if TYPE_CHECKING:
    import pytest


#: Records that a suite judges in a second, on two cores, of small tensors.
_RECORDS = {"comparison": 60, "precheck": 120, "overflow": 900, "sharded": 80, "gradients": 500}
#: Files that are named beside a dump.
_MOST_FILES = 8
_STANDARD = "--msprobe-standard=backward-error"


class Costs:
    """What a run costs, measured on two cores.

    Seconds before it judges anything, without a framework and with PyTorch; bytes of tensors that are read in a second,
    and elements, as `estimate_cost` counts them, that are computed again in one.
    """

    START_SECONDS, FRAMEWORK_SECONDS = 0.6, 2.5
    BYTES_PER_SECOND, ELEMENTS_PER_SECOND = 80_000_000, 200_000_000


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of pytest.

    Attributes:
        suite: that judges.
        arguments: of pytest.
        why: what it tells.
        seconds: about how long it takes.
        is_main: whether its answer counts when nothing is wrong; that of the others counts only where something is.
        in_process: whether it may share this process: nothing of it runs on a device.
        computes: whether a framework may run, which writes where Python does not see it.
        if_clean: whether it is only made when the steps before it have found nothing wrong.
        beside_overflow: whether it is made where NaN or Inf were found as well: a call may lose what it is given.
    """

    suite: str
    arguments: tuple[str, ...]
    why: str
    seconds: float
    is_main: bool = True
    in_process: bool = True
    if_clean: bool = False
    beside_overflow: bool = False
    computes: bool = True


def plan(target: Holding, golden: Holding | None) -> list[PlannedRun]:
    """The runs that answer what is wrong with `target`, held to `golden` where there is one."""
    return list(_steps(target, golden))


def _steps(target: Holding, golden: Holding | None) -> Iterator[PlannedRun]:
    dump = f"--msprobe-dump={target.path}"
    is_pair = golden is not None and golden.is_dump
    if target.gradients:
        yield from _gradients(target, golden)
    if not target.is_dump:
        yield from _others(target)
        return
    if target.not_finite:
        arguments = (dump, "--msprobe-suite=overflow")
        yield _step("overflow", arguments, "a value is NaN or Inf: where that begins", target, is_main=False)
    if golden is not None and is_pair:
        if _is_sharded(target, golden):
            arguments = (dump, f"--msprobe-logical={golden.path}")
            yield _step("sharded", arguments, "what the ranks hold against the whole model", target, golden)
        else:
            arguments = (dump, f"--msprobe-golden={golden.path}")
            yield _step("comparison", arguments, "where the two runs part", target, golden)
    elif target.ranks > 1:
        arguments = (dump, "--msprobe-suite=sharded")
        yield _step("sharded", arguments, "whether the ranks fit together", target, is_main=False)
    yield from _others(target)
    if not is_pair or target.holds_tensors:
        why = "each call against a float64 benchmark"
        step = _step("precheck", (dump, _STANDARD), why, target, is_main=not is_pair, if_clean=True)
        yield replace(step, beside_overflow=target.holds_tensors)


def _is_sharded(target: Holding, golden: Holding) -> bool:
    """Whether the ranks of `target` are parts of the one model of `golden`, and not runs like it."""
    if target.ranks < 2 or golden.ranks > 1:
        return False
    # Of two dumps of one rank each, apart from a call or two, more shapes agree.
    return target.ranks_differ_in_shapes or of_one_model(target, golden) < Share.SHAPES_OF_WHOLE_MODELS


def _gradients(target: Holding, golden: Holding | None) -> Iterator[PlannedRun]:
    arguments = [f"--msprobe-gradients={target.runs[0]}"]
    if golden is not None and golden.gradients:
        arguments.append(f"--msprobe-golden={golden.runs[0]}")
    why, seconds = "at which step gradients go wrong", Costs.START_SECONDS + 1
    yield PlannedRun("gradients", tuple(arguments), why, seconds, is_main=not target.is_dump)


def _others(target: Holding) -> Iterator[PlannedRun]:
    """The suites whose entries say that they judge something of what is there."""
    for entry in SUITES.values():
        files = target.others.get(entry.name, [])
        judges_dump = entry.judges is not None and target.has_record(entry.judges)
        if not (files or judges_dump):
            continue
        named = [target.path] if judges_dump or not target.is_dump else []
        if target.is_dump:
            named += files[:_MOST_FILES]
        arguments = (*map("--msprobe-dump={}".format, named), f"--msprobe-suite={entry.name}")
        yield _step(entry.name, arguments, entry.question, target, is_main=not target.is_dump)


def _step(
    suite: str,
    arguments: tuple[str, ...],
    why: str,
    *holdings: Holding,
    is_main: bool = True,
    if_clean: bool = False,
) -> PlannedRun:
    has_tensors = all(map(attrgetter("holds_tensors"), holdings))
    records = max(map(attrgetter("records"), holdings))
    # What would compare a CPU with itself is refused record by record, before anything runs.
    if suite == "precheck" and all(map(attrgetter("tests_no_device"), holdings)):
        return PlannedRun(suite, arguments, why, Costs.START_SECONDS, is_main, if_clean=if_clean)
    computes = suite == "precheck" or (suite == "comparison" and has_tensors)
    rate = _RECORDS.get(suite, 300) if has_tensors or suite == "precheck" else 3000
    seconds = (Costs.FRAMEWORK_SECONDS if computes else Costs.START_SECONDS) + records / rate
    if computes:
        seconds += sum(map(attrgetter("cost"), holdings)) / Costs.ELEMENTS_PER_SECOND
    seconds += sum(map(attrgetter("bytes"), holdings)) / Costs.BYTES_PER_SECOND
    in_process = suite != "precheck" or has_tensors
    computes = computes or suite == "overflow"
    step = PlannedRun(suite, arguments, why, seconds, is_main, if_clean=if_clean)
    return replace(step, in_process=in_process, computes=computes)


#: Exit code of pytest that was interrupted.
INTERRUPTED = 2


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that has run.

    Attributes:
        step: which.
        code: exit code of pytest.
        answer: its answer.
        rows: file of its rows; None where none were asked for.
    """

    step: PlannedRun
    code: int
    answer: Answer
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

    def run(self, step: PlannedRun) -> Ran:
        """Run one step to its end."""
        self._count += 1
        answer = self._folder / f"{self._count}.json"
        rows = self._folder / f"{self._count}.jsonl" if self._with_rows else None
        out = self._out or self._folder / f"out{self._count}"
        arguments = [*step.arguments, f"--msprobe-diagnosis={answer}", f"--msprobe-out={out}", "-q", "--tb=no"]
        arguments += map("-pno:{}".format, _UNUSED)
        if not step.computes:
            # Capturing costs a tenth where thousands of records are compared and nothing is computed.
            arguments.append("--capture=no")
        if rows is not None:
            arguments.append(f"--msprobe-jsonl={rows}")
        if step.suite == "comparison" and self._out is None:  # nobody would see the table
            arguments.append("--msprobe-table=off")
        code, said = self._in_process(step, arguments) if step.in_process else _apart(arguments)
        return Ran(step, code, _read(answer, step, said), rows if rows is not None and rows.exists() else None)

    def _in_process(self, step: PlannedRun, arguments: Sequence[str]) -> tuple[int, str]:
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
_IDLE = "warnings faulthandler setuponly assertion subtests tmpdir unittest hypothesispytest".split()


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


def _read(path: Path, step: PlannedRun, said: str) -> Answer:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Answer)
    except (OSError, msgspec.DecodeError):
        lines = [line for line in said.splitlines() if line.startswith("ERROR")] or said.strip().splitlines()
        why = lines[-1] if lines else "pytest ended without an answer"
        return Answer(suite=step.suite, outcome="nothing judged", open=(Gap(kind="refused", reason=why),))


def chosen(ran: Sequence[Ran]) -> Ran:
    """The run whose answer explains the rest.

    A finding that was computed goes before one that only differs first; where nothing is wrong the main step counts.
    """
    if wrong := [run for run in ran if run.answer.outcome == "wrong"]:
        return min(wrong, key=_rank)
    return min(ran, key=lambda run: (not run.step.is_main, run.answer.outcome == "nothing judged"))


def _rank(ran: Ran) -> tuple[int, bool, bool]:
    sure = map(CONFIDENCES.index, map(attrgetter("confidence"), ran.answer.findings))
    return min(sure, default=len(CONFIDENCES)), ran.step.beside_overflow, not ran.step.is_main


def summed_up(ran: Sequence[Ran], *, setup: Sequence[str], has_following_steps: bool = False) -> Answer:
    """The answer of all runs as one; `has_following_steps`: whether a step in the dump follows on another."""
    best = chosen(ran)
    # What looks once more where all is right finds faults: what it cannot judge is no doubt about what was asked.
    asked = [run for run in ran if run.step.is_main or not run.step.if_clean]
    beside = [run.answer for run in asked if run is not best and run.answer.outcome != "wrong"]
    # What holds from step to step cannot be judged, and need not be named, where no step follows on another.
    unnamed = () if has_following_steps else ("not checked",)
    gaps = []
    for other in beside:
        gaps += [gap for gap in other.open if gap.kind not in unnamed][:1]
    answer = _with_others(best, ran)
    steps = [TakenStep(("pytest", *run.step.arguments), run.answer.outcome, run.answer.headline) for run in ran]
    setup = tuple(dict.fromkeys((*setup, *answer.setup)))
    exact = next(filter(None, map(attrgetter("answer.exact"), ran)), None)
    return structs.replace(answer, setup=setup, open=(*answer.open, *gaps), steps=tuple(steps), exact=exact)


def _with_others(best: Ran, ran: Sequence[Ran]) -> Answer:
    """The answer of `best`, with what other suites find in other records."""
    answer = best.answer
    for other in ran:
        if other is not best and other.answer.outcome == "wrong":
            records = set(map(attrgetter("place.record"), answer.findings))
            new = [finding for finding in other.answer.findings if finding.place.record not in records]
            answer = with_findings(answer, new)
    return answer


def command_of(step: PlannedRun) -> str:
    """The command that repeats a step."""
    return shlex.join(("pytest", *step.arguments))
