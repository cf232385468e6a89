"""Tasks, levels, and which go together."""

from __future__ import annotations

from typing import Literal

Task = Literal["statistics", "tensor", "structure", "overflow_check", "exception_dump", "grad_probe"]
Level = Literal["L0", "L1", "mix", "debug", "L2"]

#: Levels that each task can work at; the first is what it takes when none is given. L2 writes configuration files for
#: the framework's own kernel dump. `grad_probe` watches an optimizer, whatever the level.
LEVELS: dict[Task, tuple[Level, ...]] = {
    "statistics": ("L1", "L0", "mix", "debug", "L2"),
    "tensor": ("L1", "L0", "mix", "debug", "L2"),
    "structure": ("mix", "L0"),
    "overflow_check": ("L1", "L0", "mix", "L2"),
    "exception_dump": ("L2",),
    "grad_probe": ("L1", "L0", "mix", "debug", "L2"),
}
