"""What the suite `repeat` can be asked to do, and its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_msprobe.suites.options import (
    DATA_DIR,
    DEVICE,
    DEVICE_IDS,
    MAX_MEMORY_BYTES,
    REMOTE_ROOT,
    SEED,
    WORKERS_PER_DEVICE,
    Options,
    flag,
    option,
)

if TYPE_CHECKING:
    from pytest_msprobe.engines.protocol import DeviceSpecification

_MOST_RUNS = 100_000


def _runs(text: str) -> int:
    if not text.strip().isdecimal() or not 2 <= int(text) <= _MOST_RUNS:
        raise ValueError(f"{text!r} is not a number of runs from 2 to {_MOST_RUNS}")
    return int(text)


@dataclass(frozen=True)
class RepeatSettings(Options):
    """What runs how often, on which inputs and devices."""

    device: DeviceSpecification = DEVICE
    device_ids: tuple[str, ...] = DEVICE_IDS
    workers_per_device: int = WORKERS_PER_DEVICE
    remote_root: str = REMOTE_ROOT
    seed: int = SEED
    max_memory_bytes: int = MAX_MEMORY_BYTES
    data_dir: tuple[Path, ...] = DATA_DIR
    batch: bool = flag(
        "run each call with other batches as well: rows alone, halved, doubled, in other order", is_common=True
    )
    runs: int = option(
        "K",
        "run every API call K times on the same inputs",
        _runs,
        "10",
        name="repeat_runs",
        is_common=True,
    )
