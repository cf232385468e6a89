"""Collects networks one after another, in a process of its own, which `quality.architectures.table` starts.

Beside the dump of each lies observed.json: what was seen of its training.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from quality.architectures.networks import ARCHITECTURES, Architecture
from quality.architectures.training import trained

#: In which the observation of a network is kept.
OBSERVED = "observed.json"


def observed(architecture: Architecture, folder: Path) -> dict[str, Any]:
    """Train it without a collector and with it, and look at the dump."""
    plain = trained(architecture, lambda network: nullcontext())
    debugger = new_debugger(architecture, folder / "tensors", task="tensor", level="mix")
    collected = trained(architecture, debugger.collect)
    debugger._at_exit()
    shutil.rmtree(folder / "tensors" / "step1", ignore_errors=True)
    layers, around = _layers(folder / "tensors")
    found = {"is_identical": plain == collected, **_dumped(folder / "tensors")}
    if architecture.framework == "pytorch":
        calls, around = _logged(architecture, folder / "watched")
        found |= {"calls": calls.seen.total(), "calls_lost": dict(+calls.lost)}
    return found | {"layers": len(around), "layers_lost": [name for name in around if name not in layers]}


def new_debugger(architecture: Architecture, folder: Path, *, task: str, level: str) -> Any:
    """The collector of its framework, as if it were the first of this process."""
    package = "msprobe_collector.pytorch" if architecture.framework == "pytorch" else "msprobe_collector"
    debugger: Any = importlib.import_module(package).PrecisionDebugger
    debugger._instance = None
    return debugger(dump_path=str(folder), level=level, task=task)


def _dumped(folder: Path) -> dict[str, Any]:
    """How many records there are, and what has no value."""
    (file,) = folder.rglob("dump.json")
    records = json.loads(file.read_text(encoding="utf-8"))["data"]
    nulls: Counter[str] = Counter()
    for name, record in records.items():
        if lost := sum(_without_values(value) for value in record.values()):
            nulls[f"{re.sub(r'[.][0-9]+', '', name)}: a tensor"] += lost
    log = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("dump_error_info.log"))
    return {
        "records": len(records),
        "nulls": dict(nulls),
        "null_types": re.findall(r"a value of type (\S+) has no form", log),
        "faults": re.findall(r"^\[[^]]*\] (.*?: \w*(?:Error|Exception)\w*: .*)$", log, re.MULTILINE),
    }


def _layers(folder: Path) -> tuple[set[str], list[str]]:
    """Backward records of layers that hold a gradient; those that there ought to be, around the backward of a call."""
    (file,) = folder.rglob("dump.json")
    records = json.loads(file.read_text(encoding="utf-8"))["data"]
    parents = json.loads(file.with_name("construct.json").read_text(encoding="utf-8"))
    held = {
        name
        for name, record in records.items()
        if ".backward." in name and any(value is not None for value in record["input"] + record["output"])
    }
    around: dict[str, None] = {}
    for name in records:
        layer = parents.get(f"{name.removesuffix('.backward')}.forward") if name.endswith(".backward") else None
        while layer:
            around[layer.replace(".forward.", ".backward.")] = None
            layer = parents.get(layer)
    return held, list(around)


def _without_values(value: Any) -> int:
    """How many tensors in a part of a record hold no values."""
    if isinstance(value, dict):
        if str(value.get("type", "")).endswith("Tensor"):
            return int("data_name" not in value)
        return sum(map(_without_values, value.values()))
    return sum(map(_without_values, value)) if isinstance(value, list) else 0


def _logged(architecture: Architecture, folder: Path) -> tuple[Any, list[str]]:
    """The first step once more, seen apart: the log of its calls; backward records that Modules ought to have."""
    from quality.architectures.watching import CallLog, ModuleLog

    debugger = new_debugger(architecture, folder, task="statistics", level="L1")
    calls, modules = CallLog(folder), list[ModuleLog]()

    @contextmanager
    def logged(network: Any) -> Iterator[None]:
        if modules:
            yield
            return
        modules.append(ModuleLog(network))
        remove = modules[0].watch()
        try:
            with debugger.collect(network), calls:
                yield
        finally:
            remove()

    trained(architecture, logged)
    debugger._at_exit()
    return calls, list(modules[0].names)


def ready(networks: Sequence[Architecture], names: Sequence[str]) -> Iterator[tuple[int, Architecture]]:
    """(number, network) of each of `networks` that is one of `names`, when this process is ready to run it."""
    warnings.simplefilter("ignore")
    os.environ.update({"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"})
    for number, architecture in enumerate(networks):
        if architecture.name not in names:
            continue
        if architecture.framework == "pytorch":
            import torch

            from quality.architectures.torchvision_operators import make_importable

            torch.set_num_threads(1)
            make_importable()
        yield number, architecture


def main(folder: Path, names: list[str]) -> None:
    """Collect each of `names` into a folder of its number."""
    for number, architecture in ready(ARCHITECTURES, names):
        place = folder / str(number)
        place.mkdir(parents=True)
        try:
            found = observed(architecture, place)
        except Exception:
            found = {"failure": traceback.format_exc()}
        (place / OBSERVED).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
