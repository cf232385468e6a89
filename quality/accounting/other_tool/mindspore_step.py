"""Dumps of one training step in MindSpore: `python -m quality.accounting.other_tool.mindspore_step JOBS.json`.

JOBS.json is as that of torch_step.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Tensor, mint, ops

from quality.accounting.other_tool.mindspore_networks import NETWORKS, torch_name
from quality.accounting.other_tool.values import Run, batch, weight


def spoil(name: str, call: int | None, output: int, fault: str) -> None:
    """Replace a function of mint, its functional module or ops, of one output, by one that is wrong in one call."""
    assert output == 0
    module, _, function = name.rpartition(".")
    holder = {"mint": mint, "functional": F, "ops": ops}[module]
    original, calls = getattr(holder, function), [0]

    def spoilt(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        calls[0] += 1
        if call is not None and calls[0] != call + 1:
            return result
        if fault.startswith("gradient "):
            part = float(fault.removeprefix("gradient "))
            return ops.stop_gradient(result * (1 - part)) + result * part
        factor = np.ones(result.shape, np.float32)
        if fault == "tail":
            factor.reshape(-1)[-max(1, factor.size // 50) :] = 0
        elif fault == "tile":
            factor[..., : max(1, factor.shape[-2] // 4), : max(1, factor.shape[-1] // 4)] = 1.06
        else:
            factor *= float(fault)
        return result * Tensor(factor)

    setattr(holder, function, spoilt)


def other_device() -> None:
    """Products in two parts along the inner axis, means from behind."""
    matmul, mean = mint.matmul, mint.mean

    def product(a: Tensor, b: Tensor) -> Tensor:
        middle = a.shape[-1] // 2
        return matmul(a[..., middle:], b[..., middle:, :]) + matmul(a[..., :middle], b[..., :middle, :])

    def average(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        return mean(ops.flip(x, (dim,)), dim, keepdim) if isinstance(dim, int) else mean(x, dim, keepdim)

    mint.matmul, mint.mean = product, average


def step(folder: Path, run: Run) -> None:
    """Dump the step."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(0)
    if run.kernel:
        spoil(*run.kernel)
    if "other-device" in run.ways:
        other_device()
    debugger = _debugger(folder, run)
    net = NETWORKS[run.network](run.plan)
    net.set_train()
    for parameter in net.trainable_params():
        parameter.set_data(Tensor(weight(torch_name(parameter), tuple(parameter.shape), run)))
    if "float16" in run.ways:
        net.to_float(ms.float16)
    inputs, targets = batch(run)
    first = Tensor(inputs.astype(np.int32 if inputs.dtype.kind == "i" else np.float32))
    second = Tensor(targets.astype(np.int32))
    scale = 1024.0 if "scaler" in run.ways else 1.0

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return net.loss(x, y) * scale if scale != 1.0 else net.loss(x, y)

    debugger.start(net)
    ms.value_and_grad(loss, None, net.trainable_params())(first, second)
    debugger.stop()
    debugger.step()


def _debugger(folder: Path, run: Run) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    settings: dict[str, Any] = {"task": "tensor", "level": run.level, "dump_path": str(folder), "rank": [], "step": []}
    if run.tool == "ours":
        from msprobe_collector.mindspore import PrecisionDebugger as Ours

        path.write_text(json.dumps(settings), encoding="utf-8")
        return Ours(str(path))
    total, root = ops.reduce_sum, ops.sqrt  # the tool's statistics need a norm that MindSpore has no CPU kernel for
    mint.norm = lambda value: root(total(ops.square(value.astype(ms.float32))))
    from msprobe.mindspore import PrecisionDebugger  # type: ignore[import-not-found]  # of the other tool

    settings["tensor"] = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    path.write_text(json.dumps(settings), encoding="utf-8")
    return PrecisionDebugger(config_path=str(path))


def main(jobs: Path) -> int:
    """Run the jobs; what a failed one said lies in its folder."""
    failed = 0
    for folder, fields in json.loads(jobs.read_text(encoding="utf-8")):
        if (child := os.fork()) == 0:
            code = 1
            try:
                step(Path(folder), Run(**fields))
                code = 0
            except BaseException:  # the parent tells of it
                Path(folder).mkdir(parents=True, exist_ok=True)
                Path(folder, "failed.txt").write_text(traceback.format_exc(), encoding="utf-8")
            finally:
                sys.stdout.flush()
                os._exit(code)
        failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
