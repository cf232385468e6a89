"""Which suites answer most about what paths hold: the cheapest first, the one whose answer counts last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from pytest_msprobe.diagnose.looking import Holding, of_one_model
from pytest_msprobe.numerics.expected import Share
from pytest_msprobe.suites.registry import SUITES

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
