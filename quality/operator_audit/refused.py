"""Every name that is in no table, tried as a record: it must be skipped, and nothing may happen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pluggy
from audit_watch import Watch

from msprobe_collector.dump_format import Dump
from pytest_msprobe import hookspecs
from pytest_msprobe.engines.protocol import parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.numerics.judgement import CosineMaxAbs
from pytest_msprobe.suites.precheck.check import CallCheck, CheckSettings
from pytest_msprobe.suites.precheck.hooks import Hooks
from quality.operator_audit.names import refused_records

DEVICES = {"mindspore": ("mindspore:cpu", "torch:cpu", "recorded"), "pytorch": ("torch:cpu", "recorded")}
_BATCH = 2_000


def try_refused(folder: Path, *, every: int, kinds: int = 4) -> Counter[str]:
    """Counts of what was tried and of what happened. Prints what should not be.

    Every n-th name is tried, with `kinds` of the four kinds of arguments, which change from name to name.
    """
    watch = Watch()
    counts: Counter[str] = Counter()
    canary = folder / "canary"
    for framework, devices in DEVICES.items():
        records = [*islice(refused_records(framework), 0, None, every)]
        counts["names"] += len({name for _, name in records})
        counts["names under an API type"] += len(records)
        for start in range(0, len(records), _BATCH):
            dump = _written(folder, framework, records[start : start + _BATCH], str(canary), kinds)
            for device in devices:
                counts.update(_checked(dump, device, watch))
    counts["files made"] += canary.exists()
    return counts


def _checked(path: Path, device: str, watch: Watch) -> Counter[str]:
    dump = Dump(path)
    engines = Engines(EngineChoice(parse_device(device), "auto", None))
    counts: Counter[str] = Counter()
    names = [name.removesuffix(".forward") for name in _calls(path)]
    for number, name in enumerate(names):
        check = CallCheck(dump, name, engines, _settings(), directions=("forward",))
        if number == 0:  # what our own code imports when it is first used
            check.run("forward")
            check = CallCheck(dump, name, engines, _settings(), directions=("forward",))
        with watch.armed():
            finding = check.run("forward")
        counts["records tried"] += 1
        counts[f"verdict {finding.status}"] += 1
        events = watch.take()
        counts["events"] += len(events)
        if events or finding.status != "skip":
            print(f"{device} {name}: {finding.status} {finding.message} {events}")
    return counts


def _calls(path: Path) -> list[str]:
    return list(json.loads(path.read_text(encoding="utf-8"))["data"])


def _settings() -> CheckSettings:
    manager = pluggy.PluginManager("pytest")
    manager.add_hookspecs(hookspecs)
    hooks = Hooks(SimpleNamespace(hook=manager.hook))  # type: ignore[arg-type]  # only its hooks are asked
    return CheckSettings(seed=0, max_memory_bytes=1 << 30, standard=CosineMaxAbs(), hooks=hooks)


def _written(folder: Path, framework: str, records: Sequence[tuple[str, str]], canary: str, kinds: int) -> Path:
    """A dump in which each name is called with strings, with integers and with tensors."""
    path = folder / "dump.json"
    data = dict(_entries(records, canary, kinds))
    header = {"task": "statistics", "level": "L1", "framework": framework, "dump_data_dir": None}
    path.write_text(json.dumps({**header, "data": data}), encoding="utf-8")
    return path


def _entries(records: Sequence[tuple[str, str]], canary: str, kinds: int) -> Iterator[tuple[str, Any]]:
    tensor = {
        "type": "mindspore.Tensor",
        "dtype": "Float32",
        "shape": [2, 2],
        "Max": 1,
        "Min": 0,
        "Mean": 0.5,
        "Norm": 1,
    }
    text = {"type": "str", "value": f"touch {canary}"}
    path = {"type": "str", "value": canary}
    three = {"type": "int", "value": 3}
    false = {"type": "bool", "value": False}
    given: list[tuple[list[Any], dict[str, Any]]] = [
        ([text], {}),
        ([path], {"weights_only": false}),
        ([three], {}),
        ([tensor, path], {"f": path}),
    ]
    for first, (api_type, name) in enumerate(records):
        for number in range(kinds):
            arguments, keywords = given[(first + number) % len(given)]
            record = {"input_args": arguments, "input_kwargs": keywords, "output": [tensor]}
            yield f"{api_type}.{name}.{number}.forward", record
