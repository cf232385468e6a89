"""`selfcheck`: whether collecting and judging work on the device of this machine, on one page that can be sent."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from pytest_msprobe.commands.common import CommandError, print_lines

_TRAINING = Path(__file__).with_name("selfcheck_training.txt")
_MOST_SECONDS = 300
_LEVELS = ("L0", "L1", "mix")
#: Steps of a training whose cost is measured; the first one is left out.
_STEPS = 6
_NAME = "attention"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "selfcheck",
        help="see on one page whether collecting and judging work on the device of this machine",
        description="Train three small networks on the device, bare and collected, judge what they computed, run their "
        "calls on the device again, also in a worker, and measure what collecting costs. Some minutes at most. Exits "
        "with 0 when all is as it should be, 1 when something is not, 2 when nothing can run.",
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="as in --msprobe-device: torch[:cpu|:cuda|:npu], mindspore[:cpu|:ascend]; by default what there is",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the page as JSON, to be sent")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    framework, device = _device(arguments.device)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="msprobe_selfcheck_") as folder:
        page = _checked(framework, device, Path(folder))
    page["seconds"] = round(time.monotonic() - started, 1)
    print_lines(_lines(page))
    if arguments.output is not None:
        try:
            arguments.output.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{arguments.output}: {error.strerror}") from None
    return int(not page["works"])


def _device(text: str) -> tuple[str, str]:
    from pytest_msprobe.engines.protocol import parse_device
    from pytest_msprobe.engines.selection import EngineChoice, Engines, has_ascend, has_cuda
    from pytest_msprobe.support import is_installed

    if text == "auto":
        accelerators = {"mindspore:ascend": has_ascend(), "torch:npu": has_ascend() and is_installed("torch_npu")}
        there = {**accelerators, "torch:cuda": has_cuda(), "torch:cpu": True, "mindspore:cpu": True}
        names = [name for name, is_there in there.items() if is_there and is_installed(name.partition(":")[0])]
        if not names:
            raise CommandError("neither PyTorch nor MindSpore is installed")
        text = names[0]
    try:
        device = parse_device(text)
    except ValueError as error:
        raise CommandError(f"--device: {error}") from None
    if device.engine not in ("torch", "mindspore"):
        raise CommandError(f"--device={text}: nothing can be trained on it; name torch:... or mindspore:...")
    if missing := Engines(EngineChoice(device, "auto", None)).missing():
        raise CommandError(missing.replace("--msprobe-device", "--device"))
    index = "" if device.index is None else f":{device.index}"
    return device.engine, f"{device.target or 'cpu'}{index}"


def _checked(framework: str, device: str, folder: Path) -> dict[str, Any]:
    """The page."""
    from pytest_msprobe.support import version_of

    dump = folder / "tensors"
    trained = _train(framework, device, folder, "mix", "tensor", steps=1)
    named = f"--msprobe-device={framework}:{device.partition(':')[0]}"
    judged = {
        "recorded": _judge(dump, folder, "--msprobe-device=recorded"),
        "again": _judge(dump, folder, f"--msprobe-device={framework}:{device}"),
        "workers": _judge(dump, folder, named, f"-n{trained['devices']}"),
    }
    costs: dict[str, dict[str, float]] = {}
    identical = {"tensors": trained["identical"]}
    for level in _LEVELS:
        measured = _train(framework, device, folder, level, "statistics", steps=_STEPS)
        identical[level] = measured["identical"]
        bare, collected = measured["seconds"][_NAME]
        records = _records(folder / level, _STEPS + 1)  # one of the second network's steps
        costs[level] = {
            "bare_ms": 1e3 * bare,
            "collected_ms": 1e3 * collected,
            "records": records,
            "us_a_record": 1e6 * (collected - bare) / max(1, records),
        }
    are_identical = all(value for level in identical.values() for value in level.values())
    return {
        "version": version_of("pytest-msprobe"),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "framework": trained["framework"],
        "device": f"{framework}:{device}",
        "name": trained["name"],
        "devices": trained["devices"],
        "digits": _digits(dump),
        "works": are_identical and set(map(itemgetter("outcome"), judged.values())) == {"right"},
        "bit_identical": identical,
        "judged": judged,
        "cost": costs,
    }


def _train(framework: str, device: str, folder: Path, level: str, task: str, *, steps: int) -> dict[str, Any]:
    """Train the three networks, bare and collected into `folder`; what the process says."""
    out = folder / ("tensors" if task == "tensor" else level)
    config = folder / f"{out.name}.json"
    section = {"scope": [], "list": [], "data_mode": ["all"]}
    settings = {"task": task, "level": level, "dump_path": str(out), "rank": [], "step": [], task: section}
    config.write_text(json.dumps(settings), encoding="utf-8")
    text = _TRAINING.read_text(encoding="utf-8")
    ended = _ended([sys.executable, "-c", text, framework, device, str(config), str(steps)], folder)
    if ended.returncode:
        said = (ended.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise CommandError(f"{framework}:{device}: a training ended with exit code {ended.returncode}: {said[:300]}")
    result: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return result


def _judge(dump: Path, folder: Path, *options: str) -> dict[str, Any]:
    """Run the calls of `dump`; outcome and first line of the answer."""
    answer = folder / "answer.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--msprobe-dump={dump}"]
    standard = "--msprobe-standard=backward-error"
    ended = _ended([*command, standard, f"--msprobe-diagnosis={answer}", f"--msprobe-out={folder}", *options], folder)
    try:
        content = json.loads(answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = (ended.stdout + ended.stderr).strip().splitlines()[-1:]
        return {"outcome": "nothing judged", "headline": "".join(last)[:300], "exit_code": ended.returncode}
    answer.unlink()
    return {"outcome": content["outcome"], "headline": content["headline"], "exit_code": ended.returncode}


def _ended(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CommandError(f"a process did not end within {_MOST_SECONDS} s") from None


def _records(out: Path, step: int) -> int:
    paths = out.glob(f"step{step}/*/dump.json")
    return sum(len(json.loads(path.read_text(encoding="utf-8"))["data"]) for path in paths)


def _digits(dump: Path) -> str:
    from msprobe_collector.dump_format.manifest import MANIFEST_FILE, read_manifest
    from pytest_msprobe.manifests.alone import digits

    return digits(read_manifest(min(dump.rglob(MANIFEST_FILE))))


def _lines(page: Mapping[str, Any]) -> Iterator[str]:
    yield f"pytest-msprobe {page['version']}, Python {page['python']}, {page['machine']}"
    yield f"{page['framework']} on {page['device']}: {page['name']}, devices: {page['devices']}"
    yield f"computes with: {page['digits'] or 'all digits of its dtypes'}"
    changed: list[str] = []
    for level, is_identical in page["bit_identical"].items():
        changed += [f"{name} ({level})" for name in is_identical if not is_identical[name]]
    count = sum(map(len, page["bit_identical"].values()))
    yield f"trainings that collecting changes: {', '.join(changed) or f'none of {count}'}"
    for name, text in (
        ("recorded", "what the training computed"),
        ("again", "on the device"),
        ("workers", "by a worker for each device"),
    ):
        yield f"{text}: {page['judged'][name]['headline']}"
    for level, cost in page["cost"].items():
        yield (
            f"collecting {level}: {cost['collected_ms']:.2f} ms a step, bare {cost['bare_ms']:.2f} ms; "
            f"{cost['us_a_record']:.0f} us for each of {cost['records']} records"
        )
    yield f"{'works' if page['works'] else 'does not work as it should'}; {page['seconds']} s"
