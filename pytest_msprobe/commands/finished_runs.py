"""The commands on rows of finished runs: `merge`, `page`, `tensorboard` and `baseline`."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import date
from itertools import chain
from operator import attrgetter
from pathlib import Path

import pytest

from msprobe_collector.dump_format.values import counted
from pytest_msprobe import __version__
from pytest_msprobe.commands.common import CommandError, check_place, print_lines, stated_errors
from pytest_msprobe.reports.baseline import Baseline, BaselineError, baseline_of, encode_baseline, read_baseline
from pytest_msprobe.reports.jsonl import MERGED_NAME, merge_runs, read_latest_rows, why_partial
from pytest_msprobe.reports.page import check_page_replaceable, write_page
from pytest_msprobe.suites.contract import RUN_FAULTS
from pytest_msprobe.suites.registry import suite_class
from pytest_msprobe.support import write_whole
from pytest_msprobe.verdicts import VerdictRow


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare both commands."""
    parser = commands.add_parser(
        "merge",
        help="join the results of several runs, shards or hosts",
        description="Join rows of --msprobe-jsonl into one JSONL file, and those of the pre-check into a CSV pair. Of "
        "rows for the same check the last one counts, in the order in which the sources are named. Exits with 1 when "
        "there are failures among them.",
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", type=Path, help="a .jsonl file, or a folder with some")
    parser.add_argument("-o", dest="folder", metavar="DIR", type=Path, required=True, help="folder to write into")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the page of the merged rows as well")
    parser.set_defaults(run=merge)
    parser = commands.add_parser(
        "page",
        help="make the page of finished runs",
        description="Make one page from rows of --msprobe-jsonl: of one run, or of shards, resumed runs and ranks "
        "together. Of rows on the same record the last one counts, in the order in which the files are named.",
    )
    parser.add_argument("sources", nargs="+", metavar="ROWS", type=Path, help="a file of --msprobe-jsonl")
    parser.add_argument("-o", dest="page", metavar="FILE", type=Path, required=True, help="page to write")
    parser.set_defaults(run=make_page)


def merge(arguments: argparse.Namespace) -> int:
    """Results of several runs, shards or hosts as one, and their summary; 1 when there are failures.

    Raises:
        CommandError: a source is not what it should be, or a file cannot be written.
    """
    with stated_errors():
        if arguments.page is not None:
            check_page_replaceable(arguments.page)
        merged = merge_runs(arguments.sources, arguments.folder, suite_class)
        print_lines(merged.lines())
        if arguments.page is not None:
            _write_page(arguments.page, [arguments.folder / MERGED_NAME])
    return int(merged.has_failed)


def make_page(arguments: argparse.Namespace) -> None:
    """Write the page of finished runs, and say where.

    Raises:
        CommandError: a source is not what it should be, or the page cannot be written.
    """
    with stated_errors():
        _write_page(arguments.page, arguments.sources)


def _write_page(page: Path, sources: Sequence[Path]) -> None:
    write_page(page, sources, suite_class)
    sys.stdout.write(f"page: {page}\n")


def add_scalars(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "tensorboard",
        help="write figures of a run over its steps for TensorBoard",
        description="Write the figures of rows that belong to a step, such as norms of gradients, as scalars of "
        "TensorBoard: a run for each rank, a tag for each suite, value and figure. Needs PyTorch and tensorboard.",
    )
    parser.add_argument("rows", metavar="ROWS", nargs="+", type=Path, help="files of --msprobe-jsonl")
    parser.add_argument("folder", metavar="DIR", type=Path, help="log folder of TensorBoard")
    parser.set_defaults(run=write_scalars)


def scalars_of(row: VerdictRow) -> Iterator[tuple[str, float]]:
    """Yield tag and value of each finite figure of `row`, which belongs to a step."""
    assert row.place is not None
    name = row.call.removesuffix(f".step{row.place.step}")
    for output in row.outputs:
        label = name if output.label in ("", name) else f"{name}.{output.label}"
        for figure, value in output.figures.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                yield f"{row.suite}/{figure}/{label}", float(value)


def write_scalars(arguments: argparse.Namespace) -> None:
    """Write the scalars.

    Raises:
        CommandError: the rows cannot be read, none of them has a step and a figure, or there is no writer.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise CommandError(f"the writer of scalars is missing: {error}; pip install torch tensorboard") from None
    writers: dict[int | None, SummaryWriter] = {}
    count = 0
    with stated_errors(), ExitStack() as stack:
        for row in read_latest_rows(arguments.rows):
            if (place := row.place) is None or place.step is None:
                continue
            for tag, value in scalars_of(row):
                if place.rank not in writers:
                    folder = arguments.folder if place.rank is None else arguments.folder / f"rank{place.rank}"
                    writers[place.rank] = SummaryWriter(str(folder))
                    stack.callback(writers[place.rank].close)
                writers[place.rank].add_scalar(tag, value, place.step)
                count += 1
    if not count:
        raise CommandError("none of these rows has a step and a figure; gradients and laws have: --msprobe-gradients")
    sys.stdout.write(f"wrote {count} scalars; show them: tensorboard --logdir {arguments.folder}\n")


#: Exit codes of a run whose verdicts are whole.
_JUDGED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def add_baseline(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "baseline",
        help="write the failures of a run as known ones, for --msprobe-baseline",
        usage="python -m pytest_msprobe baseline DUMP... -o FILE [options of pytest]\n"
        "       python -m pytest_msprobe baseline ROWS.jsonl... -o FILE",
        description="Judge dumps, or read the rows of a finished run (--msprobe-jsonl), and write all failures into "
        "FILE. pytest --msprobe-baseline=FILE then expects them. An earlier baseline in FILE is replaced: failures "
        "that stay keep their `since` and `reason`, and those of other suites stay as they are.",
        prefix_chars="+",  # options are pytest's
        add_help=False,
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="DUMP|ROWS.jsonl", help="what is judged, then options of pytest"
    )
    parser.set_defaults(run=write_baseline, help_text=parser.format_help())


def write_baseline(arguments: argparse.Namespace) -> None:
    """Make the baseline, and say what is in it.

    Raises:
        CommandError: there is nothing to make one from, or the file cannot be written.
    """
    if {"-h", "--help"} & set(arguments.arguments):
        sys.stdout.write(arguments.help_text)
        return
    target, rest = _target(arguments.arguments)
    count = next((place for place, text in enumerate(rest) if text.startswith("-")), len(rest))
    sources, options = rest[:count], rest[count:]
    earlier = _earlier(target)
    check_place("-o", target)
    if sources and all(source.endswith(".jsonl") for source in sources):
        if options:
            raise CommandError(f"{options[0]}: rows of a finished run take no options of pytest")
        baseline, partial = _of_rows(list(map(Path, sources)), earlier)
    else:
        baseline, partial = _of_run(sources, options, earlier)
    with stated_errors():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, lambda file: file.write(encode_baseline(baseline)))
    print_lines(_said(target, baseline, earlier, partial))


def _earlier(target: Path) -> Baseline | None:
    if not target.exists():
        return None
    try:
        return read_baseline(target)
    except BaselineError as error:
        raise CommandError(f"{target}: {error}; it is left as it is") from None


def _target(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """(file to write, the other arguments): the first -o is ours, later ones are pytest's."""
    place = next((place for place, text in enumerate(arguments) if text.startswith("-o")), None)
    if place is not None and arguments[place] != "-o":
        return Path(arguments[place][2:]), [*arguments[:place], *arguments[place + 1 :]]
    if place is None or place + 1 >= len(arguments):
        raise CommandError("name the file to write: -o FILE")
    return Path(arguments[place + 1]), [*arguments[:place], *arguments[place + 2 :]]


def _of_run(sources: Sequence[str], options: Sequence[str], earlier: Baseline | None) -> tuple[Baseline, list[str]]:
    """The baseline of a new run of pytest, which prints as it always does, and why it lacks rows."""
    if not sources and not any(option.startswith("--msprobe-") for option in options):
        raise CommandError("name a dump, or rows of a finished run (a file of --msprobe-jsonl)")
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.jsonl")
        # Of an option that is given twice the last one counts.
        ours = [f"--msprobe-out={folder}", *map("--msprobe-dump={}".format, sources)]
        command = [sys.executable, "-m", "pytest", *ours, *options]
        named = [option.partition("=")[2] for option in options if option.startswith("--msprobe-jsonl=")]
        if named:
            rows = Path(named[-1])
        else:
            command.append(f"--msprobe-jsonl={rows}")
        code = subprocess.run(command, check=False).returncode
        if code not in _JUDGED or not rows.is_file():
            raise CommandError(f"pytest ended with exit code {code}, so that no baseline was written")
        return _of_rows([rows], earlier)


def _of_rows(files: Sequence[Path], earlier: Baseline | None) -> tuple[Baseline, list[str]]:
    """The baseline of the rows in `files`, and why these lack rows."""
    faults: dict[str, dict[str, None]] = {}
    with stated_errors():
        rows = list(read_latest_rows(files))
        partial = list(_why_partial(files))
    if not rows:
        raise CommandError(f"{files[0]}: holds no row")
    for row in rows:
        if row.attachment:
            faults.setdefault(row.suite, {}).update(dict.fromkeys(map(str, row.attachment.get(RUN_FAULTS, ()))))
    since = f"{date.today()}, pytest-msprobe {__version__}"
    return baseline_of(rows, faults, since, earlier, is_partial=bool(partial)), partial


def _why_partial(files: Sequence[Path]) -> Iterator[str]:
    """Why the files together lack rows; all shards of a run are a whole one."""
    shards: dict[str, set[str]] = {}
    for reason in dict.fromkeys(chain.from_iterable(map(why_partial, files))):
        number, slash, count = reason.removeprefix("shard ").partition("/")
        if slash:
            shards.setdefault(count, set()).add(number)
        else:
            yield reason
    for count, numbers in shards.items():
        if len(numbers) < int(count):
            yield f"{len(numbers)} of {count} shards"


def _said(target: Path, baseline: Baseline, earlier: Baseline | None, partial: Sequence[str]) -> Iterator[str]:
    count = len(baseline.known)
    text = f"wrote {target}: {counted(count, 'known failures')}"
    if earlier is not None:
        before, now = (set(map(attrgetter("key"), file.known)) for file in (earlier, baseline))
        text += f" ({len(now - before)} new, {len(before - now)} gone, {len(now & before)} as before)"
    yield text
    if baseline.run:
        yield f"and {len(baseline.run)} known of the run as a whole"
    if partial:
        kept = "" if earlier is None else "; entries of the earlier file that no row speaks of are kept"
        yield f"of a part of the run only ({', '.join(partial)}): failures of the rest will be new{kept}"
    yield f"pytest ... --msprobe-baseline={target}"
