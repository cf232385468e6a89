"""Which device each worker process gets: decided once, before the workers start, from the caller's own list."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob

import pytest

from pytest_msprobe.engines.specification import DEVICE_VARIABLE

_ASCEND_FILES = "/dev/davinci[0-9]*"
_VISIBLE = {"ascend": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}
_THREADS_VARIABLE = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """What one worker process gets.

    Attributes:
        device: physical id of its device; None on a CPU without `--msprobe-devices`.
        environment: variables that it starts with; a worker that replaces a dead one starts with the same.
    """

    device: str | None
    environment: Mapping[str, str]


def parse_devices(text: str) -> tuple[str, ...]:
    """Device ids of a list such as `4,5,6,7` or `0-3`; empty for "". Raises ValueError."""
    found: dict[str, None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise ValueError(f"{text!r} is no list of device ids; write 4,5,6,7 or 0-3")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            if str(number) in found:
                raise ValueError(f"{text!r} names device {number} twice; several workers per device: see --help")
            found[str(number)] = None
    return tuple(found)


def visible_devices(target: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """Ids of the `ascend` or `cuda` devices that the caller lets us use, or None when that cannot be told."""
    listed = environment.get(_VISIBLE[target])
    if listed is not None:
        return tuple(part.strip() for part in listed.split(",") if part.strip())
    if target == "ascend":
        numbers = sorted(int(re.sub(r"\D", "", path)) for path in glob(_ASCEND_FILES))
        return tuple(map(str, numbers)) or None
    return None


def choose_devices(target: str, wanted: Sequence[str], workers: int) -> tuple[str, ...]:
    """The devices of a run: those that the user wants, else all visible, else 0 to workers - 1; none on a CPU.

    Raises:
        pytest.UsageError: the user wants one that is not visible.
    """
    visible = visible_devices(target) if target in _VISIBLE else None
    missing = [device for device in wanted if visible is not None and device not in visible]
    if missing:
        shown = ", ".join(visible or ()) or "none"
        raise pytest.UsageError(f"--msprobe-devices: device {missing[0]} does not exist here; visible are: {shown}")
    if wanted:
        return tuple(wanted)
    if target not in _VISIBLE:
        return ()
    return visible or tuple(str(number) for number in range(workers))


def place_workers(target: str, devices: Sequence[str], *, workers: int, per_device: int) -> list[WorkerPlace]:
    """One place per worker: devices dealt out in turn, never more than `per_device` workers on one; threads divided.

    Raises:
        pytest.UsageError: there are more workers than places.
    """
    if devices and workers > len(devices) * per_device:
        raise pytest.UsageError(
            f"-n {workers}: {len(devices)} device{'s' if len(devices) > 1 else ''} ({', '.join(devices)}) with "
            f"{per_device} worker{'s' if per_device > 1 else ''} each; use at most -n {len(devices) * per_device}, or "
            f"let K workers share a device with --msprobe-workers-per-device=K"
        )
    threads = str(max(1, (os.cpu_count() or 1) // max(1, workers)))
    places = []
    for number in range(workers):
        device = devices[number % len(devices)] if devices else None
        environment = {} if _THREADS_VARIABLE in os.environ else {_THREADS_VARIABLE: threads}
        if device is not None:
            environment[DEVICE_VARIABLE] = device
            if target in _VISIBLE:
                environment[_VISIBLE[target]] = device
        places.append(WorkerPlace(device, environment))
    return places
