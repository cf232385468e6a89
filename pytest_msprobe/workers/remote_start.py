"""What happens on another machine in the Python that will be a worker there, before it starts pytest.

execnet sends this module as text and runs it, so that nothing of ours need be importable yet: standard library only.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Mapping
from glob import glob
from itertools import filterfalse, takewhile
from pathlib import Path, PurePath
from typing import Any, NamedTuple

ASCEND_FILES = "/dev/davinci[0-9]*"
CUDA_FILES = "/dev/nvidia[0-9]*"
THREADS_VARIABLE = "OMP_NUM_THREADS"


class StartRequest(NamedTuple):  # a dataclass would look for its module, which has no name there
    """What the process that hands out the work wants of a worker on another machine.

    Attributes:
        root: rootdir of the run; `mirror` is the folder that corresponds to it where it exists, "" for none.
        folder: where the run was started.
        moves: whether the worker works in that folder, too; not when the user chose another.
        dumps: paths of the dump.json files.
        evidence: folders for what failing calls leave behind.
        target: `ascend`, `npu`, `cuda` or `cpu`.
        variable: that says which of its devices a process sees; "" for none.
        environment: variables to set.
        sharers: how many workers of the run share the machine's cores.
    """

    root: str
    mirror: str
    folder: str
    moves: bool
    dumps: list[str]
    evidence: dict[str, str]
    target: str
    variable: str
    environment: dict[str, str]
    sharers: int


class StartReport(NamedTuple):
    """What the worker says of its machine.

    Attributes:
        machine: the same text for all workers on one machine.
        root: folder that corresponds to rootdir here.
        dumps, evidence: paths of the request, as they are here.
        missing: those of the dumps that do not exist.
        occupied: those of the folders for evidence that hold something.
        devices: ids that the worker was allowed to use; None when that cannot be determined.
        has_ascend: whether there is an Ascend NPU.
    """

    machine: str
    root: str
    dumps: list[str]
    evidence: dict[str, str]
    missing: list[str]
    occupied: list[str]
    devices: list[str] | None
    has_ascend: bool


def visible_devices(target: str, variable: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """Ids of the devices of `target` that the caller lets us use, or None when that cannot be determined.

    Devices are counted by the files of the driver that this user may open: asking the driver would take a part of the
    device's memory. `variable` names those to use where it is set, "" for a target that has none; as in the drivers,
    the list ends in front of a number that does not exist.
    """
    files = device_files(target)
    open_files = [os.path.basename(path) for path in files if os.access(path, os.R_OK | os.W_OK)]
    usable = sorted(int(re.sub(r"\D", "", name)) for name in open_files)
    # The driver of CUDA counts from 0 those that it shows, and so may that of Ascend in a container.
    counted = tuple(map(str, range(len(usable))))
    listed = environment.get(variable)
    if listed is not None:
        names = [part.strip() for part in listed.split(",") if part.strip()]
        numbers = {*counted, *map(str, usable)}

        def is_there(name: str) -> bool:
            return name != "-1" and (not (files and name.isdigit()) or name in numbers)

        return tuple(takewhile(is_there, names))
    if not files:
        return None
    return counted if target == "cuda" else tuple(map(str, usable))


def device_files(target: str) -> list[str]:
    """Return the files by which a driver shows its devices of `target`."""
    return glob({"ascend": ASCEND_FILES, "npu": ASCEND_FILES, "cuda": CUDA_FILES}.get(target, ""))


def thread_count(sharers: int) -> str:
    """OpenMP threads for each of `sharers` workers on this machine."""
    return str(max(1, (os.cpu_count() or 1) // max(1, sharers)))


def settle(request: StartRequest) -> StartReport:
    """Put this process where it belongs, with the variables that frameworks read when they load."""
    devices = visible_devices(request.target, request.variable)
    root = os.path.abspath(request.mirror) if request.mirror and os.path.isdir(request.mirror) else request.root
    dumps = [_moved(path, request.root, root) for path in request.dumps]
    evidence = {kind: _moved(path, request.root, root) for kind, path in request.evidence.items()}
    folder = _moved(request.folder, request.root, root)
    if request.moves and os.path.isdir(folder):
        os.chdir(folder)
    if os.path.isdir(root):
        # Node ids are relative to rootdir: it must be the same on all machines.
        options = os.environ.get("PYTEST_ADDOPTS", "")
        os.environ["PYTEST_ADDOPTS"] = f"{options} --rootdir={shlex.quote(root)}".strip()
    os.environ.setdefault(THREADS_VARIABLE, thread_count(request.sharers))
    os.environ.update(request.environment)
    return StartReport(
        machine=f"{socket.gethostname()} {_boot()}",
        root=root,
        dumps=dumps,
        evidence=evidence,
        missing=list(filterfalse(os.path.isfile, dumps)),
        occupied=list(filter(_holds_something, evidence.values())),
        devices=None if devices is None else list(devices),
        has_ascend=bool(glob(ASCEND_FILES)),
    )


def _holds_something(path: str) -> bool:
    return os.path.exists(path) and (not os.path.isdir(path) or bool(os.listdir(path)))


def _moved(path: str, old: str, new: str) -> str:
    """`path` with `new` in place of `old` when it is inside; what is outside is at the same path everywhere."""
    inside = PurePath(path)
    return str(PurePath(new) / inside.relative_to(old)) if inside.is_relative_to(old) else path


def _boot() -> str:
    """An id that this start of the machine's kernel has for itself; containers on one machine share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


if __name__ == "__channelexec__":
    channel: Any = globals()["channel"]
    channel.send(settle(StartRequest(**channel.receive()))._asdict())
