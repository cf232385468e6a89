"""What a collection is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msprobe_collector.configuration.api_list import ApiList
from msprobe_collector.configuration.number_ranges import NumberRanges
from msprobe_collector.configuration.selection import RecordSelection
from msprobe_collector.configuration.tasks import Level, Task


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """What only the framework's own kernel dump (level L2, static graph) takes.

    Attributes:
        device: who computes the statistics.
        precision: float type in which the device computes them.
        categories: statistics to write, in the words of config.json (`max`, `nan count`, ...); empty for the default.
        check_mode: which overflow of Ascend is watched in task `overflow_check`.
    """

    device: Literal["host", "device"]
    precision: Literal["high", "low"]
    categories: tuple[str, ...]
    check_mode: Literal["aicore", "atomic", "all"]


@dataclass(frozen=True, slots=True)
class GradientMonitorSettings:
    """What is written of each parameter's gradient (task `grad_probe`).

    Attributes:
        level: L0 has an MD5 and statistics, L1 statistics and signs, L2 these and the distribution of values.
        parameters: exact names of the parameters to watch; empty for all.
        bounds: of the intervals of the distribution, strictly ascending.
    """

    level: Literal["L0", "L1", "L2"]
    parameters: tuple[str, ...]
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that config.json and the constructor ask for, checked.

    Attributes:
        file: config.json, absolute; the packaged one when none was given.
        task, level: what is collected; a pair of `LEVELS`.
        dump_path: root of the dump, absolute; not yet created.
        ranks, steps: which are collected.
        extra_info: whether stack.json and construct.json are written.
        async_dump: whether training may run on while values are written.
        precision: `low` allows 16-bit floats to be reduced in their own type; nothing has to make use of it.
        dump_enable: state of the switch in config.json that is watched while training runs; None when it has none.
        selection: which records.
        summary: `md5` adds a checksum to each tensor's statistics, `fingerprint` a hash of its content.
        overflow_limit: records with NaN or Inf after which task `overflow_check` ends; None for no end.
        api_list: APIs that the user's YAML adds to the hooked ones and takes away.
        seed, is_deterministic: for every generator of random numbers, and whether operators compute in a fixed order;
            None and False leave both to the script.
        kernel, gradients: settings of level L2 and of task `grad_probe`.
    """

    file: Path
    task: Task
    level: Level
    dump_path: Path
    ranks: NumberRanges
    steps: NumberRanges
    extra_info: bool
    async_dump: bool
    precision: Literal["low", "high"]
    dump_enable: bool | None
    selection: RecordSelection
    summary: Literal["statistics", "md5", "fingerprint"]
    overflow_limit: int | None
    api_list: ApiList
    seed: int | None
    is_deterministic: bool
    kernel: KernelSettings
    gradients: GradientMonitorSettings

    @property
    def collects_apis(self) -> bool:
        """Whether API calls become records."""
        return self.level in ("L1", "mix")

    @property
    def collects_cells(self) -> bool:
        """Whether Cells, their parameters and parameter gradients become records."""
        return self.level in ("L0", "mix")
