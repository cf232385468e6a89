"""The command `next`: configurations that collect the tensors of suspects."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from msgspec.structs import asdict

from msprobe_collector.dump_format.values import counted, printable
from pytest_msprobe.commands.common import CommandError, create, stated_errors


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
