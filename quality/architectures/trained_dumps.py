"""Dumps of networks in training, in a process of its own, which `quality.architectures.alarms` starts."""

from __future__ import annotations

import sys
import traceback
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

from quality.architectures.alarms import NETWORKS, STEPS, dtypes_of
from quality.architectures.collecting import new_debugger, ready
from quality.architectures.networks import Architecture
from quality.architectures.training import Training, trained

#: Slower for MindSpore's networks, of which some know both images by heart after five steps of the other.
_RATES = {"pytorch": 3e-4, "mindspore": 3e-5}


def dump(architecture: Architecture, dtype: str, folder: Path) -> None:
    """The calls of the steps `STEPS` of a training, in folders step0, step1, ... of `folder`."""
    debugger, steps = new_debugger(architecture, folder, task="tensor", level="L1"), count()

    def collect(network: Any) -> Any:
        return debugger.collect(network) if next(steps) in STEPS else nullcontext()

    trained(architecture, collect, Training(STEPS[-1] + 1, _RATES[architecture.framework], dtype))
    debugger._at_exit()


def main(folder: Path, names: list[str]) -> None:
    """Dump each of `names` into a folder of its number and dtype."""
    for number, architecture in ready(NETWORKS, names):
        for dtype in dtypes_of(architecture):
            place = folder / str(number) / dtype
            place.mkdir(parents=True)
            try:
                dump(architecture, dtype, place)
            except Exception:
                (place / "failure.txt").write_text(traceback.format_exc(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
