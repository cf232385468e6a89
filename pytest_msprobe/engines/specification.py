"""How users name engines: `recorded`, `mindspore:ascend:3`, `torch:cuda`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_DEVICE_ID = re.compile(r"[0-9]{1,4}")
_TARGETS = {
    "auto": (),
    "recorded": (),
    "mindspore": ("cpu", "ascend"),
    "torch": ("cpu", "cuda", "npu"),
}
#: How a worker process learns which physical device it has; inside its process that device is number 0.
DEVICE_VARIABLE = "PYTEST_MSPROBE_DEVICE"
DEVICE_FORMS = "auto, recorded, mindspore[:cpu|:ascend[:ID]] or torch[:cpu|:cuda[:ID]|:npu[:ID]]"
BENCH_FORMS = "auto, torch or mindspore"


@dataclass(frozen=True, slots=True)
class DeviceSpecification:
    """A device under test as the user named it; `target` and `index` are None where left to us."""

    engine: str
    target: str | None = None
    index: int | None = None


def parse_device(text: str) -> DeviceSpecification:
    """The device that `text` names.

    Raises:
        ValueError: it names none; the text lists the allowed forms.
    """
    engine, *rest = text.strip().lower().split(":")
    targets = _TARGETS.get(engine)
    if targets is None or len(rest) > 2 or (rest and rest[0] not in targets):
        raise ValueError(f"{text!r} is not a device; use {DEVICE_FORMS}")
    if len(rest) == 2 and (rest[0] == "cpu" or not (_DEVICE_ID.fullmatch(rest[1]) and int(rest[1]) <= 4095)):
        raise ValueError(f"{text!r} has no valid device id; use {DEVICE_FORMS} with ID from 0 to 4095")
    return DeviceSpecification(engine, rest[0] if rest else None, int(rest[1]) if len(rest) == 2 else None)


def parse_bench(text: str) -> str:
    """The benchmark that `text` names.

    Raises:
        ValueError: it names none; the text lists the allowed forms.
    """
    name = text.strip().lower()
    if name not in ("auto", "torch", "mindspore"):
        raise ValueError(f"{text!r} is not a benchmark; use {BENCH_FORMS}")
    return name


def own_device() -> str | None:
    """Physical id of this worker process's device, or None outside a worker."""
    return os.environ.get(DEVICE_VARIABLE)
