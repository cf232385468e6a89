"""One training on a device, bare or collected, in a process of its own.

Arguments: NETWORK DEVICE FOLDER|- LEVEL TASK[:SUMMARY] DTYPE STEPS [PACKAGE]. Prints a JSON line: seconds of each step
(synchronised), a digest of parameters and gradients, the size of the dump. PACKAGE is where PrecisionDebugger comes
from, by default ours; `msprobe.pytorch` is the existing tool's.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
import warnings
from pathlib import Path

import torch

from quality.on_device.networks import build

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_OURS = "msprobe_collector.pytorch"


def train(name: str, device: str, out: str, level: str, task: str, dtype: str, steps: int, package: str) -> dict:
    torch.backends.cudnn.allow_tf32 = False
    network, batch = build(name)
    kind = _DTYPES[dtype]
    network.to(device, kind)
    batch = {
        key: value.to(device, kind) if value.is_floating_point() else value.to(device) for key, value in batch.items()
    }
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    debugger = None
    if out != "-":
        Path(out).mkdir(parents=True, exist_ok=True)
        task, _, summary = task.partition(":")
        section = {"scope": [], "list": [], "data_mode": ["all"], **({"summary_mode": summary} if summary else {})}
        config = {"task": task, "dump_path": out, "rank": [], "step": [], "level": level, task: section}
        Path(f"{out}.json").write_text(json.dumps(config), encoding="utf-8")
        debugger = importlib.import_module(package).PrecisionDebugger(f"{out}.json")
    module = getattr(torch, device.partition(":")[0])
    synchronise = module.synchronize if device != "cpu" else lambda: None
    seconds = []
    for step in range(steps):
        synchronise()
        begun = time.perf_counter()
        if debugger:
            debugger.start(network) if package == _OURS else debugger.start(model=network)
        found = network(**batch)
        loss = found.loss if getattr(found, "loss", None) is not None else found[0]
        loss.backward()
        if debugger:
            debugger.stop()
        optimizer.step()
        if debugger:
            debugger.step()
        if step + 1 < steps:
            optimizer.zero_grad()
        synchronise()
        seconds.append(time.perf_counter() - begun)
    digest = hashlib.sha256()
    for parameter in network.parameters():
        for tensor in filter(lambda part: part is not None, (parameter, parameter.grad)):
            digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    files = Path(out).rglob("*") if out != "-" else ()
    size = sum(file.stat().st_size for file in files if file.is_file())
    return {"seconds": seconds, "digest": digest.hexdigest(), "bytes": size, "loss": loss.item()}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    *words, count = sys.argv[1:8]
    print(json.dumps(train(*words, int(count), sys.argv[8] if len(sys.argv) > 8 else _OURS)))
