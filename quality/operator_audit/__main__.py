"""What names of a dump can do: names outside the tables of operators, and the operators in them.

    python -m quality.operator_audit [refused] [runs] [called] [--every N] [--once]

`refused` tries every public name of both frameworks that is in no table as a record on each device, and `runs` in whole
runs of precheck with reproducers, overflow and comparison; `called` calls every operator of the tables with strings,
integers and tensors. All count events of an audit hook (files written, processes, sockets, libraries, code, imports),
print what was seen, and exit with 1 when there was any. Run it in the repository; --every 20 takes a sample, the same
one every time; --once tries each name with one kind of arguments in place of four in `refused`, and under one API type
in place of all in `runs`, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from threading import Timer

from tools import clone_environment

_MOST_SECONDS = 120


def main() -> int:
    """Run what was asked for; 1 when anything happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *_PARTS], metavar="|".join(_PARTS))
    parser.add_argument("--every", type=int, default=1, help="try every n-th name (default: 1, all)")
    parser.add_argument("--once", action="store_true", help="one kind of arguments, or one API type, for each name")
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return _child(arguments.first, arguments.every, arguments.child)
    parts = arguments.parts or [*_PARTS]
    with tempfile.TemporaryDirectory() as folder:
        found = {part: _PARTS[part](Path(folder), arguments) for part in parts}
    for part, counts in found.items():
        print(f"{part}: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    return int(any(counts[bad] for counts in found.values() for bad in ("events", "files made", "records lost")))


def _refused(folder: Path, arguments: argparse.Namespace) -> Counter[str]:
    from quality.operator_audit.refused import try_refused

    return try_refused(folder, every=arguments.every, kinds=1 if arguments.once else 4)


def _runs(folder: Path, arguments: argparse.Namespace) -> Counter[str]:
    from quality.operator_audit.whole_runs import try_in_runs

    return try_in_runs(folder, every=arguments.every, is_once=arguments.once)


def _called(folder: Path, arguments: argparse.Namespace) -> Counter[str]:
    """In child processes: kernels are called with what they were not written for, and may crash."""
    counts: Counter[str] = Counter()
    first: int | None = 0
    while first is not None:
        first = _one_child(folder, first, arguments.every, counts)
    counts["files made"] = len(list(folder.iterdir()))
    return counts


def _one_child(folder: Path, first: int, every: int, counts: Counter[str]) -> int | None:
    """Where the next child has to begin after this one crashed; None at the end."""
    command = [
        sys.executable,
        "-m",
        "quality.operator_audit",
        "--child",
        str(folder / "canary"),
        "--first",
        str(first),
        "--every",
        str(every),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder, env=clone_environment()
    ) as child:
        assert child.stdout is not None
        last = first
        timer = Timer(_MOST_SECONDS, child.kill)
        for line in child.stdout:
            if not line.startswith("{"):
                print(line, end="")
                continue
            message = json.loads(line)
            last = message.pop("number")
            counts.update(message)
            timer.cancel()
            timer = Timer(_MOST_SECONDS, child.kill)
            timer.start()
        timer.cancel()
    if child.returncode == 0:
        return None
    from quality.operator_audit.called import operators

    print(f"{operators()[last]}: the process ended with {child.returncode}")
    counts["crashes"] += 1
    return last + 1


def _child(first: int, every: int, canary: str) -> int:
    from audit_watch import Watch

    from quality.operator_audit.called import call_operators

    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = report
    for number, counts in call_operators(Watch(), first, every=every, canary=canary):
        report.write(json.dumps({"number": number, **counts}) + "\n")
    os._exit(0)  # the frameworks' own ends are not what is tested


_PARTS = {"refused": _refused, "runs": _runs, "called": _called}

if __name__ == "__main__":
    sys.exit(main())
