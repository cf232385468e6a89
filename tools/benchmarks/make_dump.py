"""Makes a large dump out of a small one: the same records again and again, under new call numbers.

    python -m tools.benchmarks.make_dump SOURCE_DIR TARGET_DIR --calls 712
    python -m tools.benchmarks.make_dump SOURCE_DIR TARGET_DIR --records 100000

TARGET_DIR may not exist yet. Tensors are hard links to the source's files where the file system allows it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from textwrap import indent
from typing import Any

from msprobe_collector.dump_format import TENSOR_FOLDER, is_cell_record, split_record_name


@dataclass(frozen=True, slots=True)
class Repeat:
    """One API call of the new dump: `source` is repeated under the name `target`, in the given round."""

    source: str
    target: str
    round: int


@dataclass(frozen=True, slots=True)
class Renaming:
    """A record of the new dump: the source's record `old` under the name `new`."""

    old: str
    new: str


def renumber(calls: Sequence[str]) -> Iterator[Repeat]:
    """`calls` over and over, without end; the calls of each API are numbered 0, 1, 2, ... as they come."""
    numbers: Counter[str] = Counter()
    for round_number in count():
        for source in calls:
            api = source.rpartition(".")[0]
            yield Repeat(source, f"{api}.{numbers[api]}", round_number)
            numbers[api] += 1


def choose_repeats(records: Iterable[str], *, calls: int | None, record_count: int | None) -> list[Repeat]:
    """As many API calls as asked for, or as `record_count` records need."""
    sizes = Counter(found[0] for record in records if (found := split_record_name(record)))
    chosen: list[Repeat] = []
    size = 0
    for repeat in renumber(list(sizes)):
        if len(chosen) == calls or (record_count is not None and size >= record_count):
            break
        chosen.append(repeat)
        size += sizes[repeat.source]
    return chosen


def order_records(records: Sequence[str], repeats: Sequence[Repeat]) -> list[Renaming]:
    """The new dump's records as a training step would write them: all forwards, then backwards from the last round."""
    forwards = [
        Renaming(f"{repeat.source}.forward", f"{repeat.target}.forward")
        for repeat in repeats
        if f"{repeat.source}.forward" in records
    ]
    backward_place = {record: place for place, record in enumerate(records) if record.endswith(".backward")}
    backwards = sorted(
        (repeat for repeat in repeats if f"{repeat.source}.backward" in backward_place),
        key=lambda repeat: (-repeat.round, backward_place[f"{repeat.source}.backward"]),
    )
    return forwards + [Renaming(f"{repeat.source}.backward", f"{repeat.target}.backward") for repeat in backwards]


def drop_tensors(value: Any) -> Any:
    """`value` without the names of tensor files."""
    if isinstance(value, dict):
        return {key: drop_tensors(item) for key, item in value.items() if key != "data_name"}
    return [drop_tensors(item) for item in value] if isinstance(value, list) else value


def tensor_files(value: Any) -> Iterator[str]:
    """Every tensor file that `value` names."""
    if isinstance(value, dict):
        if isinstance(value.get("data_name"), str):
            yield value["data_name"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from tensor_files(item)


def write_dump(path: Path, header: dict[str, Any], records: dict[str, Any], renamings: Iterable[Renaming]) -> None:
    """A dump.json in the collector's layout, streamed: 100,000 records are never in memory together."""
    texts = {name: indent(json.dumps(record, indent=1), "  ").lstrip() for name, record in records.items()}
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header, indent=1).removesuffix("\n}") + ',\n "data": {')
        separator = "\n"
        for renaming in renamings:
            text = texts[renaming.old].replace(f'"data_name": "{renaming.old}.', f'"data_name": "{renaming.new}.')
            file.write(f"{separator}  {json.dumps(renaming.new)}: {text}")
            separator = ",\n"
        file.write("\n }\n}\n")


def write_stacks(source: Path, target: Path, renamings: Iterable[Renaming]) -> None:
    """A stack.json in the shape of the source's (groups of records that share a stack); none when it has none."""
    if not source.exists():
        return
    names: dict[str, list[str]] = {}
    for renaming in renamings:
        names.setdefault(renaming.old, []).append(renaming.new)
    groups = json.loads(source.read_text(encoding="utf-8"))
    repeated = {
        key: [[new for old in group for new in names.get(old, ())], frames] for key, (group, frames) in groups.items()
    }
    target.write_text(json.dumps(repeated, indent=1), encoding="utf-8")


def link_tensors(source: Path, target: Path, records: dict[str, Any], renamings: Iterable[Renaming]) -> None:
    """Every tensor of the new dump under its new name: a hard link, or a copy on another file system."""
    target.mkdir()
    files = {name: list(tensor_files(record)) for name, record in records.items()}
    for renaming in renamings:
        for name in files[renaming.old]:
            new = target / f"{renaming.new}{name.removeprefix(renaming.old)}"
            try:
                os.link(source / name, new)
            except OSError:
                shutil.copyfile(source / name, new)


def make_dump(source: Path, target: Path, *, calls: int | None, record_count: int | None) -> int:
    """Write the dump and give the number of its records. A `record_count` makes a dump without tensors."""
    content = json.loads((source / "dump.json").read_text(encoding="utf-8"))
    records = {name: record for name, record in content.pop("data").items() if not is_cell_record(name)}
    if record_count is not None:
        records = drop_tensors(records)
        content["task"] = "statistics"
    content["level"] = "L1"
    target.mkdir(parents=True)
    renamings = order_records(list(records), choose_repeats(records, calls=calls, record_count=record_count))
    if content["task"] == "tensor":
        content["dump_data_dir"] = str((target / TENSOR_FOLDER).absolute())
        link_tensors(source / TENSOR_FOLDER, target / TENSOR_FOLDER, records, renamings)
    write_dump(target / "dump.json", content, records, renamings)
    write_stacks(source / "stack.json", target / "stack.json", renamings)
    (target / "construct.json").write_text("{}", encoding="utf-8")
    return len(renamings)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SOURCE_DIR", help="folder of a dump.json, level L1 or mix")
    parser.add_argument("target", type=Path, metavar="TARGET_DIR", help="folder to create")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--calls", type=int, help="number of API calls")
    size.add_argument("--records", type=int, help="number of records, without tensors (rounded up to whole calls)")
    arguments = parser.parse_args()
    written = make_dump(arguments.source, arguments.target, calls=arguments.calls, record_count=arguments.records)
    print(f"{arguments.target / 'dump.json'}: {written} records")


if __name__ == "__main__":
    main()
