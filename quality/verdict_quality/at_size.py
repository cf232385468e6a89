"""How often the verdicts of backward-error are wrong in calls above a million elements, and what they cost.

    python -m quality.verdict_quality.at_size [--only "*linear*" "Mint.bmm scores"] [--dtypes float32 bfloat16]
                                            [--half first] [--no-faults] [--processes 2] [--write-results]

The calls are those of one training step whose largest tensors have a million elements and more: a 7B layer (4096
channels, 32 heads of 128, 11008 inner channels whole and in quarters) with 256 and 512 tokens, a vocabulary of 32,000,
ResNet blocks of 64 x 56 x 56. Values are like those of training: tokens are alike, four channels are 20 times as large
as the others, weights have directions that count more, and rows of incoming gradients add up to zero. Half of the calls
are held out: no rule was tuned with them.

Right results are what the CPU kernels of both frameworks return in the dtype of the dump. A fault is planted into one
ideal result of each record at a time: the output, or the gradient with the most elements. What is visible is told as on
small material, with fewer moved runs: for products rounding the inputs moves an element by 1.47 times (the mean of the
largest of four runs) the square root of 2 roundings of the norm of its terms; for all others there are two moved runs
of each kind. --write-results writes the tables into quality/results.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_collector.dump_format import DIRECTIONS, Direction, Dump
from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
from pytest_msprobe.engines.protocol import Array, Output, parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.numerics.judgement import CosineMaxAbs, Judgement, OutputPair, Standard
from pytest_msprobe.numerics.measurement import Metrics
from pytest_msprobe.numerics.standards.backward_error import BackwardError
from pytest_msprobe.suites.precheck.check import CallCheck, CheckSettings
from pytest_msprobe.verdicts import Status, Verdict
from quality.verdict_quality.dumps import write_dump
from quality.verdict_quality.judging import Judge
from quality.verdict_quality.layer import CALLS, LayerCall, gradient_like
from quality.verdict_quality.partial_faults import PARTIAL_FAULTS, large_envelopes, partial_size
from quality.verdict_quality.quality import Planted
from quality.verdict_quality.recordings import Recording, Results, attempt, is_float, record
from quality.verdict_quality.samples import DTYPES, seed_of
from quality.verdict_quality.target import Target

_NO_LIMIT = 1 << 50


@dataclass(frozen=True, slots=True)
class Honest:
    """The verdicts on one record as a framework's CPU kernels returned it.

    Attributes:
        call: what it is, `Mint.bmm scores`.
        dtype, framework, direction: of the record.
        elements: of the largest tensor that is read or judged.
        status: of backward-error.
        reason: why it fails, or why it has no verdict.
        seconds: CPU seconds of the default rule and of backward-error, benchmark and reading included.
        is_held_out: whether the rules may not be tuned with the call.
    """

    call: str
    dtype: str
    framework: str
    direction: Direction
    elements: int
    status: Status
    reason: str
    seconds: tuple[float, float]
    is_held_out: bool


@dataclass(frozen=True, slots=True)
class AtSize:
    """Everything that was found; `memory_bytes` is the most that one process needed."""

    honest: tuple[Honest, ...] = ()
    planted: tuple[tuple[bool, Planted], ...] = ()
    memory_bytes: int = 0

    def __add__(self, other: AtSize) -> AtSize:
        memory = max(self.memory_bytes, other.memory_bytes)
        return AtSize(self.honest + other.honest, self.planted + other.planted, memory)

    def of_half(self, *, is_held_out: bool) -> AtSize:
        """What concerns the calls that are held out, or the others."""
        honest = tuple(one for one in self.honest if one.is_held_out == is_held_out)
        return AtSize(honest, tuple(one for one in self.planted if one[0] == is_held_out), self.memory_bytes)


@dataclass(frozen=True, slots=True)
class Task:
    """One call in one dtype, which one process works on."""

    number: int
    dtype: str
    has_faults: bool

    @property
    def call(self) -> LayerCall:
        """The call of the material."""
        return CALLS[self.number]


def measured(task: Task) -> AtSize:
    """The figures of one call in one dtype, from fixed seeds, on one thread."""
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _measured(task)
    return replace(found, memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _measured(task: Task) -> AtSize:
    recording = record(task.call.sample(task.number), DTYPES[task.dtype], draw_incoming=_incoming)
    if recording is None:
        return AtSize()
    honest: list[Honest] = []
    for framework in ("PyTorch", "MindSpore"):
        results = recording.native if framework == "PyTorch" else _of_mindspore(recording)
        if results is not None:
            honest += _honest(task, framework, recording, results)
    if not task.has_faults or not task.call.is_planted:
        return AtSize(tuple(honest))
    recording = replace(recording, native=None)
    planted = [one for direction in DIRECTIONS for one in _planted(task, recording, direction)]
    return AtSize(tuple(honest), tuple((task.call.is_held_out, one) for one in planted))


def _incoming(outputs: tuple[Output, ...], name: str) -> tuple[Array | None, ...]:
    values = [output.value for output in outputs if isinstance(output.value, np.ndarray)]
    rng = np.random.default_rng(seed_of(name, "incoming"))
    return tuple(gradient_like(rng, value.shape).astype(value.dtype) for value in values)


@cache
def _mindspore() -> MindSporeEngine:
    return MindSporeEngine(is_raised=False)


def _of_mindspore(recording: Recording) -> Results | None:
    """What MindSpore's CPU kernels return; None where it lacks one."""

    def returned() -> Results:
        execution = _mindspore().forward(recording.call, differentiate=recording.wanted)
        gradients = execution.gradients(recording.incoming) if recording.wanted else ()
        return Results(execution.outputs, gradients)

    found: Results | None = attempt(returned)
    return found


def _honest(task: Task, framework: str, recording: Recording, results: Results) -> Iterator[Honest]:
    with tempfile.TemporaryDirectory(prefix="at-size-") as folder:
        dump = Dump(write_dump(Path(folder), [(recording, results)]))
        default, strict = (_timed(dump, recording, rule) for rule in (CosineMaxAbs(), BackwardError()))
    for direction, (verdict, seconds) in strict.items():
        reason = verdict.message or next((row.message for row in verdict.outputs if row.status != "pass"), "")
        yield Honest(
            call=f"{task.call.api} {task.call.part}",
            dtype=task.dtype,
            framework=framework,
            direction=direction,
            elements=_largest(recording),
            status=verdict.status,
            reason="" if verdict.status == "pass" else reason,
            seconds=(default[direction][1], seconds),
            is_held_out=task.call.is_held_out,
        )


def _timed(dump: Dump, recording: Recording, standard: Standard) -> dict[Direction, tuple[Verdict, float]]:
    """The verdict on each direction with its CPU seconds, by engines without a memory."""
    engines = Engines(EngineChoice(parse_device("recorded"), "torch", None))
    settings = CheckSettings(seed=0, max_memory_bytes=_NO_LIMIT, standard=standard)
    directions = DIRECTIONS if recording.wanted else ("forward",)
    check = CallCheck(dump, recording.name, engines, settings, directions=directions)
    found = {}
    for direction in directions:
        start = time.process_time()
        verdict = check.run(direction)
        found[direction] = verdict, time.process_time() - start
    check.close()
    return found


def _largest(recording: Recording) -> int:
    arrays = [*recording.call.arguments, *(output.value for output in recording.ideal.outputs)]
    return max(array.size for array in arrays if isinstance(array, np.ndarray))


class _Noting:
    """backward-error that keeps its judgement and shows a pass, so that nothing is computed to explain a failure.

    Attributes:
        found: judgements so far.
    """

    name = BackwardError.name
    off_bound = BackwardError.off_bound

    def __init__(self) -> None:
        self.found: list[Judgement] = []

    def judge(self, metrics: Metrics) -> Judgement:
        """See `Standard.judge`."""
        return self._noted(BackwardError().judge(metrics))

    def judge_pair(self, pair: OutputPair) -> Judgement:
        """See `Standard`."""
        return self._noted(BackwardError().judge_pair(pair))

    def _noted(self, judgement: Judgement) -> Judgement:
        self.found.append(judgement)
        return Judgement("pass", ratio=judgement.ratio)

    @property
    def worst(self) -> Judgement:
        """The failing judgement, or any."""
        return min(self.found, key=lambda one: one.is_pass)


def _planted(task: Task, recording: Recording, direction: Direction) -> Iterator[Planted]:
    """Each fault in one result of a direction, the same for all, where the ideal results pass."""
    target = _target(recording, direction)
    if target is None:
        return
    with tempfile.TemporaryDirectory(prefix="at-size-") as folder:
        judge = Judge(write_dump(Path(folder), [(target.recording, target.recording.ideal)]))
        if not _judged(judge, target, None).is_pass:
            return
        moved = None
        for fault, change in PARTIAL_FAULTS.items():
            seed = seed_of(recording.name, direction, fault)
            faulty = change(replace(target, rng=np.random.default_rng(seed)))
            if faulty is None:
                continue
            moved = moved or large_envelopes(target)
            size = partial_size(np.asarray(faulty), target.right, moved)
            judgement = _judged(judge, target, np.asarray(faulty)) if size.is_observable else None
            status: Status | None = None if judgement is None else judgement.status
            ratio = None if judgement is None else judgement.ratio
            name = f"{recording.name}.{direction}"
            yield Planted(BackwardError.name, task.dtype, name, fault, size, status, None, ratio)
        judge.forget()


def _judged(judge: Judge, target: Target, faulty: Array | None) -> Judgement:
    def replaced(values: list[Any]) -> list[Any]:
        return [faulty if place == target.place else value for place, value in enumerate(values)]

    noting = _Noting()
    judge.verdict(target.recording.name, target.direction, noting, altered=None if faulty is None else replaced)
    return noting.worst


def _target(recording: Recording, direction: Direction) -> Target | None:
    """The first output, or the largest gradient alone: the others of one call would only cost time."""
    rng = np.random.default_rng(seed_of(recording.name, direction))
    if direction == "forward":
        forward = replace(recording, wanted=(), ideal=replace(recording.ideal, gradients=()))
        return Target(forward, direction, 0, rng) if is_float(recording.ideal.outputs[0].value) else None
    if not recording.wanted:
        return None
    gradients = recording.ideal.gradients
    # Of equal ones, which one depends on the name.
    largest = max(gradient.size for gradient in gradients if gradient is not None)
    place = int(rng.choice([n for n, g in enumerate(gradients) if g is not None and g.size == largest]))
    ideal = replace(recording.ideal, gradients=(gradients[place],))
    return Target(replace(recording, wanted=(recording.wanted[place],), ideal=ideal), direction, 0, rng)


def tasks(patterns: Iterable[str], dtypes: Iterable[str], *, halves: str, has_faults: bool) -> list[Task]:
    """The calls whose name (`Mint.bmm scores`) fits a pattern, all without one, each in each dtype."""
    patterns = tuple(patterns)
    wanted = {"first": (False,), "held-out": (True,), "all": (False, True)}[halves]
    return [
        Task(number, dtype, has_faults)
        for number, call in enumerate(CALLS)
        for dtype in dtypes
        if call.is_held_out in wanted
        and (not patterns or any(fnmatchcase(f"{call.api} {call.part}", pattern) for pattern in patterns))
    ]


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help='names: "*linear*", "Mint.bmm scores"')
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--half", choices=("first", "held-out", "all"), default="all")
    parser.add_argument("--no-faults", action="store_true", help="right results only")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--list", action="store_true", help="print each alarm, each miss, and the costs of each call")
    parser.add_argument("--write-results", action="store_true", help="write the tables in quality/results")
    return parser.parse_args()


def main() -> None:
    """The command line."""
    os.environ.setdefault("GLOG_v", "3")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options = _parsed()
    from quality.results import how
    from quality.verdict_quality import at_size_tables

    wanted = tasks(options.only, options.dtypes, halves=options.half, has_faults=not options.no_faults)
    found = AtSize()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for share in pool.map(measured, wanted):
            found += share
    figures = at_size_tables.tables_of(found)
    print("\n".join(table.text for table in figures))
    if options.list:
        print("\n".join(at_size_tables.lists(found)))
    note = at_size_tables.note_of(found)
    for table in figures if options.write_results else ():
        table.write(how("quality.verdict_quality.at_size --write-results", "torch", "mindspore", "numpy", note=note))


if __name__ == "__main__":
    main()
