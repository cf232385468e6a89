"""How often `backward-error` raises an alarm for what networks of other packages really compute.

    python -m quality.architectures.alarms [--only PATTERN...] [--half seen|held-out] [--keep FILE] [--write-results]

Each network is trained in float32 and in a half dtype (bfloat16 by PyTorch's autocast, float16 by MindSpore's
`to_float`). The calls of its first step are dumped, and those of the step after 20 others, whose values are no longer
those of an initialisation. What the CPU kernels of the framework computed is then judged against float64. They are
right, so that an alarm is false unless it is shown to be a fault of the kernel. All networks take half an hour on two
idle cores. --write-results writes two tables into quality/results: a cell of the first is items with an alarm / judged
items, where an item is a forward or a backward of one call, and behind a plus are gradients of the weight and bias of
layer_norm that PyTorch's CPU kernel adds up in bfloat16, row by row: a fault of the kernel. The second has each other
alarm. Held out are networks that the rule was not mended on: half of them by name, and those added last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.apis.fact_table import adds_up_narrowly
from quality.architectures.networks import ADDED_LAST, ARCHITECTURES, Architecture
from quality.architectures.table import packages, prechecked
from quality.results import Table, how
from tools import ROOT

#: Whose alarms were known when the others were divided: they cannot be held out.
_KNOWN = frozenset("whisper wav2vec2 swin gemma2 clip detr blip hubert".split()) | {
    *("mindcv resnet18", "mindcv densenet121")
}
#: Networks whose dumps lie on the disk together.
_TOGETHER = 3
NETWORKS = (*ARCHITECTURES, *ADDED_LAST)
#: Steps that are dumped.
STEPS = (0, 20)


@dataclass(frozen=True)
class Found:
    """What was judged of one dump.

    Attributes:
        network, dtype, step: whose dump it is.
        judged, skipped, unjudged: numbers of items (a direction of a call): passed or alarm, skipped, without verdict.
        alarms: (call and direction, ratio, elements, message) of each output that is judged wrong.
        failure: why there is no dump; "" where there is one.
    """

    network: str
    dtype: str
    step: int
    judged: int = 0
    skipped: int = 0
    unjudged: int = 0
    alarms: tuple[tuple[str, float, int, str], ...] = ()
    failure: str = ""


def is_held_out(name: str) -> bool:
    """Whether the rule is not mended on the network of this name: those added last, and a half chosen by the name."""
    if name in {item.name for item in ADDED_LAST}:
        return True
    return name not in _KNOWN and zlib.crc32(name.encode()) % 2 == 1


def dtypes_of(architecture: Architecture) -> tuple[str, str]:
    """In which it is trained."""
    return ("float32", "bfloat16" if architecture.framework == "pytorch" else "float16")


def measured(architectures: Sequence[Architecture], processes: int) -> Iterator[list[Found]]:
    """What is found of some networks after others; the dumps of a few lie on the disk at a time."""
    groups = [list(members) for _, members in groupby(architectures, key=lambda item: item.package)]
    chunks = [group[at : at + _TOGETHER] for group in groups for at in range(0, len(group), _TOGETHER)]
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(_measured_together, chunks)


def _measured_together(chunk: Sequence[Architecture]) -> list[Found]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        command = [sys.executable, "-m", "quality.architectures.trained_dumps", str(folder)]
        subprocess.run([*command, *(item.name for item in chunk)], cwd=ROOT, capture_output=True)
        dumps = sorted({file.parents[1] for file in folder.rglob("dump.json")})
        rows = prechecked(dumps, folder)
        places = [(item, dtype, step) for item in chunk for dtype in dtypes_of(item) for step in STEPS]
        return [_found(*place, folder, rows) for place in places]


def _found(item: Architecture, dtype: str, step: int, folder: Path, rows: Sequence[Mapping[str, Any]]) -> Found:
    place = folder / str(NETWORKS.index(item)) / dtype
    failure = place / "failure.txt"
    if failure.is_file() or not place.is_dir():
        text = failure.read_text("utf-8") if failure.is_file() else "the process ended"
        return Found(item.name, dtype, step, failure=text)
    own = [row for row in rows if Path(row["dump"]).is_relative_to(place / f"step{STEPS.index(step)}")]
    wrong = [row for row in own if row["outcome"] == "failed"]
    alarms = tuple(alarm for row in wrong for alarm in _alarms(row))
    unjudged = sum(not any(_alarms(row)) for row in wrong)
    skipped = sum(row["outcome"] == "skipped" for row in own)
    return Found(item.name, dtype, step, len(own) - skipped - unjudged, skipped, unjudged, alarms)


def _alarms(row: Mapping[str, Any]) -> Iterator[tuple[str, float, int, str]]:
    for output in row["outputs"]:
        if output["status"] == "error":
            elements = 1
            for length in output["shape"] or ():
                elements *= length
            ratio = output["ratio"]
            call = f"{row['call']} {row['part']} {output['label']} {output['tested_dtype']}"
            yield call, float("inf") if ratio is None else float(ratio), elements, output["message"]


def is_known(call: str, dtype: str) -> bool:
    """Whether the CPU kernel is known to add up this gradient in its narrow dtype, so that the alarm is right."""
    name, direction, *_ = call.split()
    return dtype == "bfloat16" and direction == "backward" and adds_up_narrowly(parse_api_name(name), "pytorch")


def _from_line(line: str) -> Found:
    held = json.loads(line)
    return Found(**{**held, "alarms": tuple(tuple(alarm) for alarm in held["alarms"])})


def network_table(found: Sequence[Found]) -> Table:
    """Return the sums by half of the networks, then a row for each network."""
    head = ("network", "half", "float32, step 0", "float32, step 20", "half dtype, step 0", "half dtype, step 20")
    return Table.of("alarms_on_networks", head, _rows(found))


def _rows(found: Sequence[Found]) -> Iterator[list[str]]:
    for half, held_out in (("seen", False), ("held out", True)):
        if members := [one for one in found if is_held_out(one.network) is held_out]:
            yield ["all", half, *_cells(members)]
    for name in dict.fromkeys(one.network for one in found):
        half = "held out" if is_held_out(name) else "seen"
        yield [name, half, *_cells([one for one in found if one.network == name])]


def _cells(members: Sequence[Found]) -> Iterator[str]:
    for is_half in (False, True):
        for step in STEPS:
            own = [one for one in members if one.step == step and (one.dtype != "float32") is is_half]
            judged = [one for one in own if not one.failure]
            known, others = (sum(_items(one, is_fault=wanted) for one in judged) for wanted in (True, False))
            count = f"{others} + {known}" if known else f"{others}"
            yield f"{count} / {sum(one.judged for one in judged)}" if judged else "not trained"


def _items(one: Found, *, is_fault: bool) -> int:
    """How many items have an alarm that is, or is not, a known fault of the kernel."""
    return len({call.rpartition(" output")[0] for call, *_ in one.alarms if is_known(call, one.dtype) is is_fault})


def alarm_table(found: Sequence[Found]) -> Table:
    """Return each alarm that is no known fault of a kernel."""
    rows = [
        (one.network, one.dtype, one.step, call, f"{ratio:.3g}", elements, message)
        for one in found
        for call, ratio, elements, message in one.alarms
        if not is_known(call, one.dtype)
    ]
    return Table.of("alarms", ("network", "dtype", "step", "call", "ratio", "elements", "message"), rows)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="names of networks, such as 'mindcv *'"
    )
    parser.add_argument("--leave-out", nargs="+", default=[], metavar="PATTERN", help="names of networks")
    parser.add_argument("--half", choices=["seen", "held-out"], help="only these networks")
    parser.add_argument("--keep", type=Path, help="keep what is found here, and do not measure again what it holds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write-results", action="store_true", help="write the tables in quality/results")
    return parser.parse_args()


def _is_asked(name: str, options: argparse.Namespace) -> bool:
    if options.half and is_held_out(name) is not (options.half == "held-out"):
        return False
    wanted, left_out = (any(fnmatchcase(name, one) for one in each) for each in (options.only, options.leave_out))
    return wanted and not left_out


def main() -> int:
    """Measure, print the tables, and write them when asked to."""
    options = _asked()
    held = options.keep.read_text("utf-8").splitlines() if options.keep and options.keep.is_file() else []
    found = [one for one in map(_from_line, held) if _is_asked(one.network, options)]
    known = {one.network for one in found}
    asked = [item for item in NETWORKS if _is_asked(item.name, options) and item.name not in known]
    for group in measured(asked, options.processes):
        found += group
        sys.stderr.write("".join(f"{one}\n" for one in group))
        if options.keep:
            with options.keep.open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(asdict(one))}\n" for one in group)
    order = [item.name for item in NETWORKS]
    found.sort(key=lambda one: order.index(one.network))
    tables = network_table(found), alarm_table(found)
    left = f"{sum(one.skipped for one in found)} skipped, {sum(one.unjudged for one in found)} without a verdict"
    sys.stdout.write("".join((*(table.text for table in tables), f"{left}\n")))
    for table in tables if options.write_results else ():
        table.write(how("quality.architectures.alarms --write-results", *packages(), note=left))
    return 0


if __name__ == "__main__":
    sys.exit(main())
