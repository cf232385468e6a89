"""Which device each worker process gets: decided once, before the workers start, from the caller's own list."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from pytest_msprobe.engines.specification import DEVICE_VARIABLE
from pytest_msprobe.workers.remote_start import THREADS_VARIABLE, VISIBLE, thread_count, visible_devices


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """What one worker process gets.

    Attributes:
        host: name of its machine; "" for this one.
        sharers: how many workers of the run are there.
        device: physical id of its device; None on a CPU without `--msprobe-devices`.
        environment: variables that it starts with; a worker that replaces a dead one starts with the same.
    """

    host: str
    sharers: int
    device: str | None
    environment: Mapping[str, str]

    @property
    def name(self) -> str | None:
        """The device as suites call it: `3`, `npu1-3` for one of another host; None for none."""
        return self.device if self.device is None or not self.host else f"{self.host}-{self.device}"


def choose_devices(target: str, wanted: Sequence[str], workers: int) -> tuple[str, ...]:
    """The devices of a run here: those that the user wants, else all visible, else 0 to workers - 1; none on a CPU.

    Raises:
        pytest.UsageError: the user wants one that is not visible.
    """
    visible = visible_devices(target)
    missing = [device for device in wanted if visible is not None and device not in visible]
    if missing:
        shown = ", ".join(visible or ()) or "none"
        raise pytest.UsageError(f"--msprobe-devices: device {missing[0]} does not exist here; visible are: {shown}")
    return tuple(wanted) or visible or _numbered(target, workers)


def check_index(target: str, index: int) -> None:
    """Refuse the device that a single process names, when it can be determined that this process has no such device.

    Frameworks count the devices that they see from 0.

    Raises:
        pytest.UsageError: there are not so many.
    """
    visible = visible_devices(target)
    if visible is not None and index >= len(visible):
        shown = ", ".join(visible) or "none"
        raise pytest.UsageError(
            f"--msprobe-device: there is no {target}:{index}; visible are: {shown}, counted from {target}:0"
        )


def place_workers(hosts: Sequence[str], *, target: str, wanted: Sequence[str], per_device: int) -> list[WorkerPlace]:
    """One place per worker, in the order of `hosts`, which names each worker's machine; "" is this one.

    Every host assigns its own devices in turn, never more than `per_device` workers on one, and divides its cores.
    What another host has is unknown yet: without `wanted`, its devices are numbered from 0.

    Raises:
        pytest.UsageError: there are more workers than places, or no such device here.
    """
    rows = {
        host: iter(_places_on(host, hosts.count(host), target=target, wanted=wanted, per_device=per_device))
        for host in dict.fromkeys(hosts)
    }
    return [next(rows[host]) for host in hosts]


def distinct_devices(places: Sequence[WorkerPlace]) -> tuple[str, ...]:
    """Names of the devices of `places`, each once; () on a CPU without `--msprobe-devices`."""
    return tuple(dict.fromkeys(place.name for place in places if place.name is not None))


def _places_on(host: str, workers: int, *, target: str, wanted: Sequence[str], per_device: int) -> list[WorkerPlace]:
    devices = (tuple(wanted) or _numbered(target, workers)) if host else choose_devices(target, wanted, workers)
    if devices and workers > len(devices) * per_device:
        asked = f"{workers} workers on {host}" if host else f"-n {workers}"
        most = f"{len(devices) * per_device} there" if host else f"-n {len(devices) * per_device}"
        raise pytest.UsageError(
            f"{asked}: {len(devices)} device{'s' if len(devices) > 1 else ''} ({', '.join(devices)}) with "
            f"{per_device} worker{'s' if per_device > 1 else ''} each; use at most {most}, or "
            f"let K workers share a device with --msprobe-workers-per-device=K"
        )
    dealt = [devices[number % len(devices)] if devices else None for number in range(workers)]
    return [WorkerPlace(host, workers, device, _environment(host, workers, target, device)) for device in dealt]


def _environment(host: str, sharers: int, target: str, device: str | None) -> dict[str, str]:
    environment = {}
    if not host and THREADS_VARIABLE not in os.environ:
        environment[THREADS_VARIABLE] = thread_count(sharers)
    if device is not None:
        environment[DEVICE_VARIABLE] = device
        if target in VISIBLE:
            environment[VISIBLE[target]] = device
    return environment


def _numbered(target: str, workers: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(workers)) if target in VISIBLE else ()
