"""The command `diagnose`: one answer about a dump, or about two."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from msgspec import structs

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.commands.common import check_place, stated_errors
from pytest_msprobe.diagnose.looking import Holding, look_at, of_one_model
from pytest_msprobe.diagnose.planning import Step, plan
from pytest_msprobe.diagnose.running import INTERRUPTED, Ran, StepRunner, chosen, command_of, summed_up
from pytest_msprobe.diagnose.setup import looks_wrong, set_up_differently, with_derivatives, with_suspicions
from pytest_msprobe.diagnosis import CannotSay, Diagnosis, NextStep
from pytest_msprobe.diagnosis.file import check_replaceable, write_diagnosis
from pytest_msprobe.diagnosis.value import headline
from pytest_msprobe.reports.page import check_page_replaceable, write_page
from pytest_msprobe.suites.registry import suite_class

#: Exit codes: of an answer, where nothing could be judged, and where what was named is no dump.
_CODES = {"fault": 1, "rounding": 0, "equal": 0, "not_judged": 5}
_UNUSABLE = 4
#: Dumps of which fewer shapes are the same are not of one model.
_LEAST_SHARE = 0.3
_OURS = ("python", "-m", "pytest_msprobe")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "diagnose",
        help="say what is wrong with a dump, or between two",
        description="Look at what a dump holds, run the suites that answer most, the cheapest first, and say one "
        "answer: what is wrong, where, how sure that is, and what to do next. Exits with 0 when nothing is wrong, 1 "
        "when something is, 2 to 4 as pytest does, 5 when nothing was judged.",
    )
    parser.add_argument("dump", metavar="DUMP", type=Path, help="dump.json, a folder of dumps, or of gradients")
    parser.add_argument("golden", metavar="GOLDEN", nargs="?", type=Path, help="the same of a run that is right")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the page of all verdicts as well")
    parser.add_argument("--json", metavar="FILE", help="write the answer as JSON of at most 4 kB; - for the output")
    parser.add_argument("--out", metavar="DIR", type=Path, help="keep the result files of the suites in DIR")
    parser.set_defaults(run=diagnose)


def diagnose(arguments: argparse.Namespace) -> int:
    """Say what is wrong; the exit code.

    Raises:
        CommandError: a file cannot be written.
    """
    talk: TextIO = sys.stderr if arguments.json == "-" else sys.stdout
    file = Path(arguments.json) if arguments.json not in (None, "-") else None
    with stated_errors():
        if file is not None:
            check_replaceable(file)
        if arguments.page is not None:
            check_page_replaceable(arguments.page)
    for option, target in (("--json", file), ("--page", arguments.page)):
        if target is not None:
            check_place(option, target)
    found, code = _answered(arguments, talk)
    if arguments.json == "-":
        sys.stdout.write(found.to_json().decode("utf-8"))
    elif file is not None:
        with stated_errors():
            write_diagnosis(file, found)
    width = shutil.get_terminal_size().columns if talk.isatty() else 100
    talk.write("\n".join(["", *found.lines(width), ""]))
    return code


def _answered(arguments: argparse.Namespace, talk: TextIO) -> tuple[Diagnosis, int]:
    target = look_at(arguments.dump)
    golden = look_at(arguments.golden) if arguments.golden is not None else None
    sides = [side for side in (target, golden) if side is not None]
    steps = plan(target, golden)
    if not steps:
        why = target.why_nothing or "holds nothing that a suite judges"
        if target.has_manifest and golden is not None and golden.has_manifest:
            why = "holds a manifest and no dump.json, so that only the set-ups could be compared"
        return _nothing(target, why, target, golden)
    if golden is not None and (why := _why_unlike(target, golden)):
        return _nothing(golden, why, target, golden)
    for side in sides:
        talk.write(f"{printable(str(side.path))}: {side}\n")
    with tempfile.TemporaryDirectory(prefix="msprobe_diagnose_") as folder:
        runner = StepRunner(Path(folder), arguments.out, with_rows=arguments.page is not None, show=_progress(talk))
        ran = _run(runner, steps, talk)
        gaps = [CannotSay(str(path), why) for side in sides for path, why in side.unreadable.items()]
        manifest = set_up_differently(target, golden)
        found = summed_up(ran, manifest=manifest, gaps=gaps, has_following_steps=target.has_following_steps)
        found = _with_own_file(found, Path(folder), arguments)
        causes = looks_wrong(target) if golden is None else []
        found = with_suspicions(found, causes)
        if golden is None:
            found = with_derivatives(found, target)
        if arguments.page is not None:
            _write_page(arguments.page, ran, talk)
    return found, max(_exit_code(found, ran), int(bool(causes)))


def _with_own_file(found: Diagnosis, folder: Path, arguments: argparse.Namespace) -> Diagnosis:
    """`found` with the file of --json in commands that read the answer; first how to write it, where there is none."""
    written = arguments.json not in (None, "-")
    own = arguments.json if written else "diagnosis.json"
    steps = []
    for step in found.next:
        reads = any(argument.startswith(f"{folder}/") for argument in step.arguments)
        if reads and not written:
            sides = (str(path) for path in (arguments.dump, arguments.golden) if path is not None)
            steps.append(NextStep((*_OURS, "diagnose", *sides, "--json", own), "the file that the next command reads"))
        own_arguments = (own if argument.startswith(f"{folder}/") else argument for argument in step.arguments)
        steps.append(structs.replace(step, arguments=tuple(own_arguments)))
    return structs.replace(found, next=tuple(steps))


def _run(runner: StepRunner, steps: list[Step], talk: TextIO) -> list[Ran]:
    ran: list[Ran] = []
    for step in steps:
        is_open = any(each.diagnosis.outcome == "unaccounted" for each in ran if each.step.is_main)
        faults = [each for each in ran if each.diagnosis.outcome == "fault"]
        if step.beside_overflow:
            faults = [each for each in faults if each.step.suite != "overflow"]
        if step.if_clean and (is_open or faults):
            continue
        # Nothing that another suite finds could explain more.
        if any(fault.confidence == "proved" for each in faults for fault in each.diagnosis.at_fault):
            continue
        talk.write(f"{step.suite}: {step.why}, about {max(1, round(step.seconds))} s: {printable(command_of(step))}\n")
        talk.flush()
        ran.append(runner.run(step))
        if ran[-1].code == INTERRUPTED:
            break
    return ran


def _why_unlike(target: Holding, golden: Holding) -> str:
    """Why two holdings cannot be compared; "" where they can."""
    if target.gradients and golden.gradients:
        return ""
    if not (target.is_dump and golden.is_dump):
        return golden.why_nothing or f"holds {golden}, and {target.path} holds {target}"
    share = 1.0 if target.ranks != golden.ranks else of_one_model(target, golden)
    if share < _LEAST_SHARE:
        return f"is of another model or batch than {target.path}: {100 * share:.0f} % of the shapes are the same"
    return ""


def _nothing(bad: Holding, why: str, target: Holding, golden: Holding | None) -> tuple[Diagnosis, int]:
    """The answer where nothing can be judged, since of `bad`."""
    what = printable(str(bad.path))
    why = why.removeprefix(f"{bad.path}: ")
    found = Diagnosis(
        suite="diagnose",
        outcome="not_judged",
        headline=headline("not_judged", f"{bad.path.name or what}: {why}"),
        cannot_say=(CannotSay(what, why),),
        dumps=tuple(str(side.path) for side in (target, golden) if side is not None),
        next=_what_to_do(target, golden),
        manifest=set_up_differently(target, golden),
    )
    return found, _CODES["not_judged"] if bad.is_usable else _UNUSABLE


def _what_to_do(target: Holding, golden: Holding | None) -> tuple[NextStep, ...]:
    missing = [str(side.path) for side in (target, golden) if side is not None and not side.path.exists()]
    if missing:
        return (NextStep((), f"{' and '.join(missing)}: check the path, from the folder {Path.cwd()}"),)
    arguments: tuple[str, ...]
    if len(target.runs) > 1:
        arguments, why = ("diagnose", *map(str, target.runs[:2])), "what both runs say, the first held to the other"
    elif golden is not None and target.is_dump:
        arguments, why = ("diagnose", str(target.path)), "what the first one says alone"
    elif target.has_manifest and (golden is None or golden.has_manifest):
        other = "GOLDEN" if golden is None else str(golden.path)
        arguments, why = ("manifest", str(target.path), other), "how both runs are set up"
    else:
        return (NextStep((), "collect a step with PrecisionDebugger (docs/collecting.md), and name its dump.json"),)
    return (NextStep((*_OURS, *arguments), why),)


def _exit_code(found: Diagnosis, ran: list[Ran]) -> int:
    code = chosen(ran).code
    if any(each.code == INTERRUPTED for each in ran):
        return INTERRUPTED
    if found.outcome == "unaccounted":
        return code if code in (0, 1) else 1
    return _CODES[found.outcome]


def _write_page(page: Path, ran: list[Ran], talk: TextIO) -> None:
    first = chosen(ran)
    sources = [each.rows for each in (first, *(each for each in ran if each is not first)) if each.rows is not None]
    with stated_errors():
        write_page(page, sources, suite_class)
    talk.write(f"page: {page}\n")


def _progress(talk: TextIO) -> Callable[[str], None]:
    """What shows the state of a run: on a terminal a line that the next one replaces."""

    def show(text: str) -> None:
        if talk.isatty():
            talk.write(f"\r{text}\x1b[K\r")
            talk.flush()

    return show
