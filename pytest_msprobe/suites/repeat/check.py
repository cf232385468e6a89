"""One API call run again and again on one device, with the same inputs and with other memory around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from msprobe_collector.dump_format import Direction, Dump
from pytest_msprobe.apis.topics import documented_difference
from pytest_msprobe.cases.call_run import CallRun, CapturedError, Incoming, attempt
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.inputs import drawn_arguments
from pytest_msprobe.engines.protocol import (
    Array,
    DeviceEngine,
    Execution,
    LeafPath,
    NotJudged,
    Unsupported,
    leaves,
    output_label,
)
from pytest_msprobe.suites.repeat.batch import BatchCheck
from pytest_msprobe.suites.repeat.options import RepeatSettings
from pytest_msprobe.suites.repeat.results import Outcome, Runs, failure_text, judge_runs
from pytest_msprobe.verdicts import Verdict

#: What is left in memory before a run: NaN, and a number whose bytes are large in every dtype.
_FILLINGS = (math.nan, float.fromhex("0x1.fefefep+127"))
#: Runs that find filled memory, and every so many behind them: filling costs as much as several runs of a small call.
_FILLED = (2, 3)
_FILLED_EVERY = 64


class RepeatCheck:
    """The check of one API call: each run computes its forward once, and its gradients from that forward."""

    def __init__(
        self,
        dump: Dump,
        name: str,
        engine: DeviceEngine,
        target: str,
        settings: RepeatSettings,
        *,
        directions: Sequence[Direction],
    ) -> None:
        """A check of the call `name` of `dump` on `engine`, whose device is a `target`: `cpu`, `cuda`, `ascend`."""
        self._dump = dump
        self._name = name
        self._engine = engine
        self._target = target
        self._settings = settings
        self._directions = directions
        self._verdicts: dict[Direction, Verdict] = {}
        self._unfilled = ""  # why memory could not be filled

    def run(self, direction: Direction) -> Verdict:
        """The verdict on one direction; the first that is asked for runs all of them."""
        if not self._verdicts:
            try:
                self._verdicts = self._judge()
            except NotJudged as stop:
                self._verdicts = dict.fromkeys(
                    self._directions, Verdict(stop.status, stop.message, properties=stop.properties)
                )
        return self._verdicts[direction]

    def _judge(self) -> dict[Direction, Verdict]:
        with_backward = "backward" in self._directions
        settings = self._settings
        call_run = CallRun(
            self._dump,
            self._name,
            with_backward=with_backward,
            max_memory_bytes=settings.max_memory_bytes,
            seed=settings.seed,
        )
        case = call_run.case
        if case.random is not None:
            raise NotJudged("skip", "random by nature: its results differ in every run")
        refusal = self._engine.refusal(case.api, case.call.framework)
        if refusal is not None:
            raise NotJudged("skip", f"device: {refusal}")
        verdicts: dict[Direction, Verdict] = {}
        incoming: Incoming | None = None
        if with_backward:
            try:
                incoming = call_run.incoming("backward")
            except NotJudged as stop:
                verdicts["backward"] = Verdict(stop.status, stop.message, properties=stop.properties)
        runs = self._repeat(case, case.wanted if incoming is not None else (), incoming)
        drawn = drawn_arguments(case.forward)
        for direction in self._directions:
            if direction not in verdicts:
                kind = documented_difference(case.api, case.call.framework, self._target, direction)
                verdict = judge_runs(runs[direction], settings.runs, self._engine.label, documented=kind, drawn=drawn)
                if self._unfilled and verdict.status == "pass":
                    verdict = replace(verdict, message=f"memory was not filled between runs: {self._unfilled}")
                if settings.batch and verdict.status == "pass":
                    verdict = self._in_other_batches(case, incoming if direction == "backward" else None, verdict)
                verdicts[direction] = verdict
        return verdicts

    def _in_other_batches(self, case: Case, incoming: Incoming | None, verdict: Verdict) -> Verdict:
        """The `verdict` on runs that agree, or what other batches than the recorded one change of it."""
        labels = [case.gradient_label(path) for path in case.wanted]
        check = BatchCheck(self._engine, case.call, case.wanted, labels, self._settings.max_memory_bytes)
        by_batch = check.run(incoming)
        if by_batch.status != "pass":
            return replace(by_batch, device=verdict.device, attachment=verdict.attachment)
        figures = {row.label: row.figures for row in by_batch.outputs}
        rows = (replace(row, figures={**row.figures, **figures.get(row.label, {})}) for row in verdict.outputs)
        return replace(verdict, outputs=tuple(rows))

    def _repeat(self, case: Case, wanted: tuple[LeafPath, ...], incoming: Incoming | None) -> dict[Direction, Runs]:
        forwards, backwards = Runs(), Runs()
        sizes = [value.nbytes for _, value in leaves(case.call) if hasattr(value, "nbytes")]
        start = self._engine.repeated(case.call, differentiate=wanted)
        for run in range(1, self._settings.runs + 1):
            is_intact = self._fill(run, sizes) if run in _FILLED or run % _FILLED_EVERY == 0 else _untouched
            execution = attempt(start)
            forward = backward = _outputs(execution)
            forwards.add(run, forward)
            if incoming is not None:
                if not isinstance(execution, (CapturedError, Unsupported)):
                    backward = attempt(partial(execution.gradients, incoming))
                backwards.add(run, backward)
            if not is_intact():
                forwards.overwritten.append(run)
                backwards.overwritten.append(run)
            if run == 1:
                if isinstance(execution, (CapturedError, Unsupported)):
                    break
                forwards.labels = [output_label(output.path) for output in execution.outputs]
                backwards.labels = [case.gradient_label(path) for path in case.wanted]
                sizes += [value.nbytes for value in _arrays(forward) + _arrays(backward)]
            del execution  # its memory goes to the next run
        return {"forward": forwards, "backward": backwards}

    def _fill(self, run: int, sizes: Sequence[int]) -> Callable[[], bool]:
        """Fill the memory that a run will get; whether its neighbours are untouched afterwards."""
        value = _FILLINGS[run % 2]
        filled = attempt(lambda: self._engine.fill_memory(sizes, value))
        if isinstance(filled, (CapturedError, Unsupported)):
            self._unfilled = failure_text(filled)
            return _untouched
        return filled


def _untouched() -> bool:
    return True


def _outputs(execution: Execution | CapturedError | Unsupported) -> Outcome:
    if isinstance(execution, (CapturedError, Unsupported)):
        return execution
    return tuple([output.value for output in execution.outputs])


def _arrays(outcome: Outcome) -> list[Array]:
    values = outcome if isinstance(outcome, tuple) else ()
    return [value for value in values if hasattr(value, "nbytes")]  # type: ignore[misc]  # arrays only
