"""The machines and devices of a run: which of them each worker gets, and how one on another machine is prepared.

Devices are dealt once, before the workers start, from the caller's own list.
"""

from __future__ import annotations

import getopt
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import pytest
from execnet.gateway_bootstrap import HostNotFound

from msprobe_collector.dump_format.values import counted
from pytest_msprobe.engines.protocol import DEVICE_VARIABLE, VISIBLE
from pytest_msprobe.workers import remote_start
from pytest_msprobe.workers.remote_start import (
    THREADS_VARIABLE,
    StartReport,
    StartRequest,
    device_files,
    thread_count,
    visible_devices,
)

#: ssh's flags; those with a colon take a value.
_SSH_FLAGS = "1246AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"
#: Where xdist lets a worker on another machine start when the user does not say where.
_DEFAULT_FOLDER = "pyexecnetcache"


def host_of(spec: Any, proxies: Mapping[str, Any]) -> str:
    """Name of the machine of an execnet spec as the user wrote it, without the user; "" for this machine.

    `proxies` are the specs of `--px` by their ids, which `via=` names.
    """
    if spec.via in proxies:
        return host_of(proxies[spec.via], {})
    if spec.ssh:
        return _ssh_destination(spec.ssh)
    return str(spec.vagrant_ssh or spec.socket or spec.via or "")


def refuse_arguments(config: pytest.Config) -> None:
    """Refuse what means something else on another machine.

    Raises:
        pytest.UsageError: a dump is an argument of its own, which xdist would copy or refuse, or rootdir is named.
    """
    is_copied = bool(config.getoption("rsyncdir") or config.getini("rsyncdirs"))
    for argument in map(str, config.invocation_params.args):
        path = config.invocation_params.dir / argument.partition("::")[0]
        if argument and path.exists() and (path.name == "dump.json" or not is_copied):
            raise pytest.UsageError(
                f"{argument}: with workers on other hosts a path is part of its option, as in --msprobe-dump={argument}"
            )
    if config.getoption("msprobe_remote_root") and config.getoption("rootdir"):
        raise pytest.UsageError(
            "--msprobe-remote-root replaces rootdir on other hosts, where --rootdir means the same path as here; "
            "start pytest in its rootdir and leave --rootdir out"
        )


def send_ahead(gateway: Any, request: StartRequest, *, host: str) -> StartReport:
    """Prepare the process behind `gateway`, which will be a worker on `host`.

    Raises:
        pytest.UsageError: it cannot be prepared, or a dump is not there.
    """
    channel = gateway.remote_exec(remote_start)
    try:
        channel.send(request._asdict())
        started = StartReport(**channel.receive())
    except (channel.RemoteError, EOFError) as error:
        raise pytest.UsageError(f"{host}: no worker can start there: {last_line(error)}") from None
    if started.missing:
        raise pytest.UsageError(f"{host}: {started.missing[0]} does not exist there; {_remedy(request, started)}")
    return started


def check_devices(all_started: Sequence[tuple[str, str | None, StartReport]], target: str) -> None:
    """Refuse a device that the last of (host, device, started) does not have, or shares with another name of its host.

    Raises:
        pytest.UsageError: one line on it.
    """
    host, device, started = all_started[-1]
    if device is None or target not in VISIBLE:
        return
    if started.devices is not None and device not in started.devices:
        shown = ", ".join(started.devices) or "none"
        raise pytest.UsageError(f"--msprobe-device-ids: device {device} does not exist on {host}; visible are: {shown}")
    for other, taken, earlier in all_started[:-1]:
        if other != host and taken == device and earlier.machine == started.machine:
            raise pytest.UsageError(
                f"--tx: {other} and {host} are one machine, whose device {device} would get a worker from each; "
                f"call the machine by one name"
            )


@contextmanager
def naming_lost_hosts() -> Iterator[None]:
    """Turn what execnet says of a host that is not there into one line.

    Raises:
        pytest.UsageError: with it.
    """
    try:
        yield
    except HostNotFound as error:
        raise pytest.UsageError(f"--tx: ssh={error} cannot be reached; what ssh says stands above") from None
    except OSError as error:
        if error.errno is not None:
            raise
        # execnet's own: the process at the other end is gone.
        raise pytest.UsageError(f"--tx: a worker's Python did not start; what it says stands above ({error})") from None


def starts_in_default_folder(spec: Any) -> bool:
    """Whether the user left it to us in which folder the worker of `spec` starts."""
    return spec.chdir in (None, _DEFAULT_FOLDER)


def last_line(error: object) -> str:
    """What an exception of another process says in the end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return re.sub(r"^[\w.]*UsageError: ", "", lines[-1])


def _remedy(request: StartRequest, started: StartReport) -> str:
    if not request.mirror:
        return "copy the dump there, or say with --msprobe-remote-root=DIR which folder there corresponds to rootdir"
    if started.root == request.root:
        return f"--msprobe-remote-root={request.mirror} is not a folder there"
    return f"--msprobe-remote-root={request.mirror} corresponds to rootdir {request.root}"


def _ssh_destination(text: str) -> str:
    """`hosta` of `-F config me@hosta`; with its port, if that is named, since another port may be another container."""
    try:
        flags, words = getopt.gnu_getopt(text.split(), _SSH_FLAGS)
    except getopt.GetoptError:
        return text
    if not words:
        return text
    return ":".join(filter(None, (words[0].rpartition("@")[2], dict(flags).get("-p"))))


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """What one worker process gets.

    Attributes:
        host: name of its machine; "" for this one.
        sharers: how many workers of the run are there.
        device: physical id of its device; None on a CPU without `--msprobe-device-ids`.
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
        pytest.UsageError: there is none, or the user wants one that is not visible.
    """
    visible = usable_devices(target)
    missing = [device for device in wanted if visible is not None and device not in visible]
    if missing:
        shown = ", ".join(visible or ()) or "none"
        raise pytest.UsageError(f"--msprobe-device-ids: device {missing[0]} does not exist here; visible are: {shown}")
    return tuple(wanted) or visible or _numbered(target, workers)


def usable_devices(target: str) -> tuple[str, ...] | None:
    """Return the ids of the devices of `target` here; None when that cannot be determined, as of a CPU.

    Raises:
        pytest.UsageError: none of those that there are can be used.
    """
    variable = VISIBLE.get(target, "")
    visible = visible_devices(target, variable)
    if visible == ():
        files = device_files(target)
        closed = sorted(path for path in files if not os.access(path, os.R_OK | os.W_OK))
        reason = f"you may not open {', '.join(closed)}" if closed else f"{variable} is {os.environ.get(variable)!r}"
        raise pytest.UsageError(f"--msprobe-device: no device of {target} can be used here: {reason}")
    return visible


def check_index(target: str, index: int) -> None:
    """Refuse the device that a single process names, when it can be determined that this process has no such device.

    Frameworks count the devices that they see from 0.

    Raises:
        pytest.UsageError: there are not so many.
    """
    visible = usable_devices(target)
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
    """Names of the devices of `places`, each once; () on a CPU without `--msprobe-device-ids`."""
    return tuple(dict.fromkeys(place.name for place in places if place.name is not None))


def _places_on(host: str, workers: int, *, target: str, wanted: Sequence[str], per_device: int) -> list[WorkerPlace]:
    devices = (tuple(wanted) or _numbered(target, workers)) if host else choose_devices(target, wanted, workers)
    room = len(devices) * per_device
    if devices and workers > room:
        asked = f"{workers} workers on {host}" if host else f"-n {workers}: {workers} workers"
        most = f"{room} there" if host else f"-n {room}"
        raise pytest.UsageError(
            f"{asked}, {counted(len(devices), 'devices')} ({', '.join(devices)}) with "
            f"{counted(per_device, 'workers')} each; use at most {most}, or "
            f"let K workers share a device with --msprobe-workers-per-device=K"
        )
    in_turn = islice(cycle(devices or (None,)), workers)
    return [WorkerPlace(host, workers, device, _environment(host, workers, target, device)) for device in in_turn]


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
    return tuple(map(str, range(workers))) if target in VISIBLE else ()
