"""What one rank does; quality.sharded.launching starts it.

python -m quality.sharded.process RANK WORLD STORE FOLDER TASK NAME...
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import warnings
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from quality.sharded import catalogue
from quality.sharded.entries import Entry
from quality.sharded.tasks import arguments

#: Beside the dump of a rank: loss, norm and parameters after the step without the collector.
RESULT = "result{rank}.pt"
#: Whether the collector changed a bit, or why there is no dump.
DONE = "done{rank}.json"
#: How long a rank waits for another one, which may have died.
PATIENCE = timedelta(seconds=60)


def ran(entry: Entry, folder: Path, rank: int, task: str, *, is_single: bool) -> dict[str, Any]:
    """Train once without the collector and once with it; whether both end with the same bits."""
    change = entry.change if entry.change is not None and not is_single else nullcontext
    with change():
        plain = _trained(entry, {}, is_single=is_single)
    torch.save(plain, folder / RESULT.format(rank=rank))
    with change():
        collected = _trained(entry, arguments(task, folder, rank), is_single=is_single)
    return {"is_identical": all(torch.equal(collected[name], value) for name, value in plain.items())}


def _trained(entry: Entry, asked: dict[str, str], *, is_single: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    training = entry.made(is_single=is_single)
    names = dict(training.model.named_parameters())
    if not asked:
        for _ in range(entry.steps):
            training.step()
    else:
        debugger: Any = importlib.import_module("msprobe_collector.pytorch").PrecisionDebugger
        debugger._instance = None
        made = debugger(**asked)
        for _ in range(entry.steps):
            with made.collect(training.model):
                training.step()
        made._at_exit()
    found = {"loss": training.loss, "norm": training.norm}
    found |= {f"gradients.{name}": one.grad for name, one in names.items() if one.grad is not None}
    found |= {f"parameters.{name}": one for name, one in names.items()}
    found |= {f"part.{name}": torch.tensor(part) for name, part in getattr(training, "parts", {}).items()}
    return {name: plain(value.detach()).clone() for name, value in found.items()}


def plain(x: Any) -> torch.Tensor:
    """A DTensor as a whole tensor."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def main(rank: int, world: int, store: str, folder: Path, task: str, names: list[str]) -> None:
    """Run each entry of `names` with a process group of its own; world 0 is the run on one rank."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in names:
        entry = catalogue.by_name(name)
        place = folder / entry.folder
        place.mkdir(parents=True, exist_ok=True)
        if world:
            file = f"file://{store}-{entry.folder}"
            dist.init_process_group("gloo", init_method=file, rank=rank, world_size=world, timeout=PATIENCE)
        try:
            found = ran(entry, place, rank, task, is_single=not world)
        except Exception:
            found = {"failure": traceback.format_exc()}
        (place / DONE.format(rank=rank)).write_text(json.dumps(found), encoding="utf-8")
        if world:
            dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5], sys.argv[6:])
