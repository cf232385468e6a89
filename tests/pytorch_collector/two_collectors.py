"""One step of the small GPT, collected: python two_collectors.py PACKAGE FOLDER, with the package's PrecisionDebugger.

It runs with our collector and, in an environment of its own, with the existing tool.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import torch
from pytorch_collector.small_gpt import Training


def main(package: str, folder: Path) -> None:
    torch.set_num_threads(1)
    config = {
        "task": "statistics",
        "dump_path": str(folder / "dump"),
        "rank": [],
        "step": [],
        "level": "mix",
        "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    debugger = importlib.import_module(package).PrecisionDebugger(config_path=str(folder / "config.json"))
    training = Training()
    debugger.start(training.net)
    training.step()
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
