"""The commands on dumps: `diagnose`, and two parts of its answer alone, `manifest` and `next`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TextIO

from msgspec import structs
from msgspec.structs import asdict

from msprobe_collector.dump_format.values import counted, printable
from pytest_msprobe.answers import About, Answer, ArgumentDifference, Finding, Gap, NextStep, Place, with_findings
from pytest_msprobe.answers.file import about_of, check_replaceable, to_json, write_answer
from pytest_msprobe.answers.words import lines as lines_of
from pytest_msprobe.commands.common import CommandError, check_place, create, print_lines, stated_errors
from pytest_msprobe.diagnose.looking import (
    Holding,
    look_at,
    looks_wrong,
    of_another_model,
    of_one_model,
    set_up_differently,
    with_derivatives,
    with_suspicions,
)
from pytest_msprobe.diagnose.running import (
    INTERRUPTED,
    PlannedRun,
    Ran,
    StepRunner,
    chosen,
    command_of,
    plan,
    summed_up,
)
from pytest_msprobe.numerics.expected import Share
from pytest_msprobe.reports.page import check_page_replaceable, write_page
from pytest_msprobe.suites.registry import suite_class

#: Exit code where what was named is no dump.
_UNUSABLE = 4
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
    parser.add_argument(
        "--exact",
        metavar="DUMP",
        type=Path,
        help="say which of both is nearer to this run, the same step by python -m msprobe_collector collect "
        "--dtype=float64",
    )
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
    answer, code = _answered(arguments, talk)
    if arguments.json == "-":
        sys.stdout.write(to_json(answer).decode("utf-8"))
    elif file is not None:
        with stated_errors():
            write_answer(file, answer)
    width = shutil.get_terminal_size().columns if talk.isatty() else 100
    talk.write("\n".join(["", *lines_of(answer, width), ""]))
    return code


def _answered(arguments: argparse.Namespace, talk: TextIO) -> tuple[Answer, int]:
    target = look_at(arguments.dump)
    golden = look_at(arguments.golden) if arguments.golden is not None else None
    sides = [side for side in (target, golden) if side is not None]
    steps = plan(target, golden)
    if arguments.exact is not None:
        steps = _with_exact(steps, arguments.exact)
    if not steps:
        why = target.why_nothing or "holds nothing that a suite judges"
        if target.has_manifest and golden is not None and golden.has_manifest:
            why = "holds a manifest and no dump.json, so that only the set-ups could be compared"
        return _nothing(target, why, target, golden)
    if golden is not None and (why := _why_unlike(target, golden)):
        difference = of_another_model(target, golden) if target.is_dump and golden.is_dump else None
        if difference is not None:
            return _two_models(difference, target, golden)
        return _nothing(golden, why, target, golden)
    for side in sides:
        talk.write(f"{printable(str(side.path))}: {side}\n")
    with tempfile.TemporaryDirectory(prefix="msprobe_diagnose_") as folder:
        runner = StepRunner(Path(folder), arguments.out, with_rows=arguments.page is not None, show=_progress(talk))
        ran = _run(runner, steps, talk)
        setup = set_up_differently(target, golden)
        answer = summed_up(ran, setup=setup, has_following_steps=target.has_following_steps)
        for side in sides:
            answer = with_findings(answer, list(map(_unreadable, side.unreadable.items())))
        answer = _with_own_file(answer, Path(folder), arguments)
        if golden is None:
            answer = with_derivatives(with_suspicions(answer, looks_wrong(target)), target)
        about = _about(target, golden)
        if arguments.exact is not None:
            about += (about_of(arguments.exact, side="exact"),)
        cut = {name: count for name, count in answer.cut.items() if name != "about"}
        answer = structs.replace(answer, about=about, cut=cut)
        if arguments.page is not None:
            _write_page(arguments.page, ran, answer, talk)
    return answer, INTERRUPTED if INTERRUPTED in map(attrgetter("code"), ran) else answer.exit_code


def _with_exact(steps: list[PlannedRun], exact: Path) -> list[PlannedRun]:
    """`steps`, of which the comparison says which run is nearer to the exact one.

    Raises:
        CommandError: there is no comparison, or no exact run.
    """
    from pytest_msprobe.suites.comparison.sides import why_not_exact

    if "comparison" not in map(attrgetter("suite"), steps):
        raise CommandError("--exact: no two runs are compared; give DUMP and GOLDEN of one rank, and --exact=DUMP")
    with stated_errors():
        why = why_not_exact(exact)
    if why:
        raise CommandError(f"--exact={exact}: {why}")
    for place, step in enumerate(steps):
        if step.suite == "comparison":
            steps[place] = replace(step, arguments=(*step.arguments, f"--msprobe-exact={exact}"))
    return steps


def _unreadable(entry: tuple[Path, str]) -> Finding:
    path, why = entry
    place = Place(record="", operation=str(path))
    return Finding(kind="damaged", confidence="proved", place=place, detail=why)


def _with_own_file(answer: Answer, folder: Path, arguments: argparse.Namespace) -> Answer:
    """`answer` with the file of --json in commands that read the answer; first how to write it, where there is none."""
    is_written = arguments.json not in (None, "-")
    file = arguments.json if is_written else "diagnosis.json"
    steps = []
    for step in answer.next:
        with_file = tuple(file if argument.startswith(f"{folder}/") else argument for argument in step.arguments)
        if with_file != step.arguments and not is_written:
            sides = [str(path) for path in (arguments.dump, arguments.golden) if path is not None]
            steps.append(NextStep("answer file", (*_OURS, "diagnose", *sides, "--json", file)))
        steps.append(structs.replace(step, arguments=with_file))
    return structs.replace(answer, next=tuple(steps))


def _run(runner: StepRunner, steps: list[PlannedRun], talk: TextIO) -> list[Ran]:
    ran: list[Ran] = []
    for step in steps:
        wrong = [run for run in ran if run.answer.outcome == "wrong"]
        if step.beside_overflow:
            wrong = [run for run in wrong if run.step.suite != "overflow"]
        if step.if_clean and wrong:
            continue
        # Nothing that another suite finds could explain more.
        if any(finding.confidence == "proved" for run in wrong for finding in run.answer.findings):
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
    # Dumps of which fewer shapes are the same are not of one model.
    if share < Share.SHAPES_OF_ONE_MODEL and not _is_one_model(target, golden):
        return f"is of another model or batch than {target.path}: {100 * share:.0f} % of the shapes are the same"
    return ""


def _is_one_model(target: Holding, golden: Holding) -> bool:
    """Whether two runs compute with the same parameters, in other shapes or with another batch."""
    from pytest_msprobe.suites.comparison.content import CommonContent
    from pytest_msprobe.suites.comparison.sides import ComparedDump

    content = CommonContent.of(*(ComparedDump(side.dumps[0].path) for side in (target, golden)))
    return content is not None and content.is_one_model


def _two_models(difference: ArgumentDifference, target: Holding, golden: Holding) -> tuple[Answer, int]:
    place = Place(record="", operation=difference.name)
    finding = Finding(kind="model", confidence="proved", place=place, arguments=(difference,))
    answer = _without_run("wrong", target, golden, findings=(finding,), next=(NextStep("one model"),))
    return answer, answer.exit_code


def _nothing(bad: Holding, why: str, target: Holding, golden: Holding | None) -> tuple[Answer, int]:
    """The answer where nothing can be judged, since of `bad`."""
    gap = Gap(kind="refused", what=printable(str(bad.path)), reason=why.removeprefix(f"{bad.path}: "))
    answer = _without_run("nothing judged", target, golden, open=(gap,), next=_what_to_do(target, golden))
    return answer, answer.exit_code if bad.is_usable else _UNUSABLE


def _without_run(
    outcome: Literal["wrong", "nothing judged"], target: Holding, golden: Holding | None, **parts: Any
) -> Answer:
    about, setup = _about(target, golden), set_up_differently(target, golden)
    return Answer(suite="diagnose", outcome=outcome, about=about, setup=setup, **parts)


def _about(target: Holding, golden: Holding | None) -> tuple[About, ...]:
    about = (about_of(target.path),)
    return about if golden is None else (*about, about_of(golden.path, side="golden"))


def _what_to_do(target: Holding, golden: Holding | None) -> tuple[NextStep, ...]:
    missing = [str(side.path) for side in (target, golden) if side is not None and not side.path.exists()]
    if missing:
        return (NextStep("path", subject=f"{' and '.join(missing)}, from the folder {Path.cwd()}"),)
    if len(target.runs) > 1:
        return (NextStep("both runs", (*_OURS, "diagnose", *map(str, target.runs[:2]))),)
    if golden is not None and target.is_dump:
        return (NextStep("alone", (*_OURS, "diagnose", str(target.path))),)
    if target.has_manifest and (golden is None or golden.has_manifest):
        other = "GOLDEN" if golden is None else str(golden.path)
        return (NextStep("set-ups", (*_OURS, "manifest", str(target.path), other)),)
    return (NextStep("collect"),)


def _write_page(page: Path, ran: list[Ran], answer: Answer, talk: TextIO) -> None:
    first = chosen(ran)
    ordered = sorted(ran, key=lambda run: run is not first)
    sources = list(filter(None, map(attrgetter("rows"), ordered)))
    with stated_errors():
        write_page(page, sources, suite_class, answer)
    talk.write(f"page: {page}\n")


def _progress(talk: TextIO) -> Callable[[str], None]:
    """What shows the state of a run: on a terminal a line that the next one replaces."""

    def show(text: str) -> None:
        if talk.isatty():
            talk.write(f"\r{text}\x1b[K\r")
            talk.flush()

    return show


def add_manifest(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "manifest",
        help="say what differs between two runs before any number: settings, versions, weights, batch",
        description="Compare the run.json that the collector wrote beside two dumps: optimizers, model, precision, "
        "switches, versions, environment, batch, initial weights, random state; the most likely explanation of other "
        "numbers first. Of one run: what it is made of, and what looks wrong in it. Exits with 0 when nothing differs "
        "(or looks wrong), 1 when something does, 2 when a manifest cannot be read.",
    )
    parser.add_argument("target", metavar="DUMP", type=Path, help="folder of a run, step or rank, or a run.json")
    parser.add_argument("golden", metavar="GOLDEN", type=Path, nargs="?", help="the same of the run to compare with")
    parser.set_defaults(run=say_what_differs)


def say_what_differs(arguments: argparse.Namespace) -> int:
    """Print the differences; the exit code."""
    from pytest_msprobe.manifests.text import lines_of_one, lines_of_two

    if arguments.golden is None:
        lines, code = lines_of_one(arguments.target)
    else:
        lines, code = lines_of_two(arguments.target, arguments.golden)
    print_lines(lines)
    return code


def add_next_collection(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "next",
        help="write the configurations that collect the tensors of suspects",
        description="Write the config.json of both runs that collects the tensors of the calls which a comparison "
        "without tensors suspects, and say how to prove it with them.",
    )
    parser.add_argument("diagnosis", metavar="FILE", type=Path, help="a file of --msprobe-diagnosis")
    parser.add_argument(
        "-o",
        dest="file",
        metavar="FILE",
        type=Path,
        default=Path("config.json"),
        help="of the target; that of the golden run stands beside it as FILE with _golden; default: config.json",
    )
    parser.set_defaults(run=write_next)


def write_next(arguments: argparse.Namespace) -> None:
    """Write the configurations of the next collection, and say what to do with them.

    Raises:
        CommandError: the diagnosis is not what it should be, asks for nothing, or a file cannot be written.
    """
    from pytest_msprobe.suites.comparison.accounting.next_collection import read_next_collection

    with stated_errors():
        collection = read_next_collection(arguments.diagnosis)
    if collection is None:
        raise CommandError(f"{arguments.diagnosis}: suspects no call whose tensors would tell more")
    target, folder = arguments.file, arguments.file.stem
    files = {"target": target, "golden": target.with_name(f"{target.stem}_golden{target.suffix}")}
    dumps = {side: f"{folder}_dumps/{side}" for side in files}
    for side, file in files.items():
        keys = {name: value for name, value in asdict(getattr(collection, side)).items() if value}
        create(file, json.dumps({**keys, "dump_path": dumps[side]}, indent=2) + "\n")
    command = f"pytest --msprobe-dump={dumps['target']} --msprobe-golden={dumps['golden']}"
    sys.stdout.write(
        f"{counted(len(collection.calls), 'calls')}: {', '.join(map(printable, collection.calls))}\n"
        f"1. run the target again with PrecisionDebugger({str(files['target'])!r}), the golden run with "
        f"PrecisionDebugger({str(files['golden'])!r})\n"
        f"2. {command} --msprobe-diagnosis={folder}_diagnosis.json\n"
    )
