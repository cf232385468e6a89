"""Collects every training of troubles.py at level L1 with tensors: python collect_troubles.py FOLDER."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from pytorch_collector import troubles

from msprobe_collector.pytorch import PrecisionDebugger


def main(folder: Path) -> None:
    torch.use_deterministic_algorithms(True)
    warnings.simplefilter("ignore")
    for name, training in troubles.TRAININGS.items():
        torch.manual_seed(5)
        PrecisionDebugger._instance = None
        debugger = PrecisionDebugger(dump_path=str(folder / name), level="L1", task="tensor")
        for _ in training(lambda model, debugger=debugger: debugger.collect(model, rank_id=0)):
            pass
        debugger._at_exit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
