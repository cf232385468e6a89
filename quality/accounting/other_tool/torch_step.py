"""Dumps of one training step in PyTorch: `python -m quality.accounting.other_tool.torch_step JOBS.json`.

JOBS.json is a list of [folder, fields of `Run`]. Each job runs in a process that is forked from this one, one by one; a
collector is imported after the fork, because it changes PyTorch.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from quality.accounting.other_tool import torch_images, torch_sequences
from quality.accounting.other_tool.torch_kernels import OtherDevice, WrongKernel
from quality.accounting.other_tool.values import Run, batch, weight

NETWORKS: dict[str, Any] = {
    "gpt": torch_sequences.Gpt,
    "llama": torch_sequences.Llama,
    "recurrent": torch_sequences.Recurrent,
    "scan": torch_sequences.Scan,
    "resnet": torch_images.ResNet,
    "vit": torch_images.Vit,
    "mixer": torch_images.Mixer,
    "unet": torch_images.UNet,
    "diffusion": torch_images.Diffusion,
    "gan": torch_images.Gan,
}


def step(folder: Path, run: Run) -> None:
    """Dump the step."""
    torch.manual_seed(0)
    net = network(run)
    batches = [tensors(run, number) for number in range(2 if "accumulate" in run.ways else 1)]
    debugger = _debugger(folder, run)
    train = Training(net, run)
    with ExitStack() as stack:
        if "mkldnn-off" in run.ways:
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        if "other-device" in run.ways:
            stack.enter_context(OtherDevice())
        if run.kernel:
            stack.enter_context(WrongKernel(*run.kernel))
        debugger.start(net)
        train.backward(batches)
        if "stop-late" in run.ways:
            train.update()
        debugger.stop()
        debugger.step()


def network(run: Run) -> Any:
    """With its weights, as the run wants it."""
    net = NETWORKS[run.network](run.plan)
    net.train()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.from_numpy(weight(name, tuple(parameter.shape), run)))
    if "frozen" in run.plan:
        net.norms[run.plan["frozen"]].eval()
    if "bfloat16" in run.ways:
        net.bfloat16()
    if "channels-last" in run.ways:
        net.to(memory_format=torch.channels_last)
    return net


def tensors(run: Run, number: int) -> list[torch.Tensor]:
    """Inputs and targets."""
    inputs, targets = (torch.from_numpy(value.copy()) for value in batch(run, number))
    if "bfloat16" in run.ways and inputs.is_floating_point():
        inputs = inputs.bfloat16()
    if "channels-last" in run.ways:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    if run.network == "gan":
        targets = torch.from_numpy(batch(run, number + 50)[0][:, :5].copy())
    return [inputs, targets]


class Training:
    """What a training script does of a step."""

    def __init__(self, net: Any, run: Run) -> None:
        self.net, self.run = net, run
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in run.ways)
        kind = torch.optim.SGD if "sgd" in run.ways else torch.optim.AdamW
        self.optimizer = kind(net.parameters(), lr=1e-2)

    def backward(self, batches: list[list[torch.Tensor]]) -> None:
        """Losses and gradients."""
        for tensors in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in self.run.ways):
                losses = list(self.losses(tensors))
            for number, loss in enumerate(losses, 1):
                scaled = self.scaler.scale(loss / len(batches) if len(batches) > 1 else loss)
                scaled.backward(retain_graph=number < len(losses))

    def losses(self, tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        """One, or that of each network of two."""
        if self.run.network == "gan":
            yield from self.net.losses(*tensors)
        else:
            yield self.net.loss(*tensors)

    def update(self) -> None:
        """Clipping and the optimizer's step."""
        if "clip" in self.run.ways:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.05)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def _debugger(folder: Path, run: Run) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    settings: dict[str, Any] = {"task": "tensor", "level": run.level, "dump_path": str(folder), "rank": [], "step": []}
    if run.tool == "ours":
        from msprobe_collector.pytorch import PrecisionDebugger as Ours

        path.write_text(json.dumps(settings), encoding="utf-8")
        return Ours(str(path))
    from msprobe.pytorch import PrecisionDebugger  # type: ignore[import-not-found]  # of the other tool

    settings["tensor"] = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    path.write_text(json.dumps(settings), encoding="utf-8")
    return PrecisionDebugger(config_path=str(path))


def main(jobs: Path) -> int:
    """Run the jobs; what a failed one said lies in its folder."""
    torch.set_num_threads(1)
    failed = 0
    for folder, fields in json.loads(jobs.read_text(encoding="utf-8")):
        if (child := os.fork()) == 0:
            code = 1
            try:
                if "threads" in fields.get("ways", ()):
                    torch.set_num_threads(3)
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
