"""The command `tensorboard`: figures of a run over its steps, as scalars of TensorBoard."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from pytest_msprobe.commands.common import CommandError, stated_errors
from pytest_msprobe.reports.jsonl import read_latest_rows
from pytest_msprobe.verdicts import VerdictRow


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
