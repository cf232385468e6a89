"""Trainings with PyTorch that reach every entry of its collector; see injecting.py."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe_collector.pytorch import PrecisionDebugger, provenance

__all__ = ["SCENARIOS", "PrecisionDebugger"]

torch.set_num_threads(1)
provenance._LEAST_STORAGES = 8

KERNELS = SimpleNamespace(scaled=lambda x, by: x * by)


class Net(nn.Module):
    """Calls of all kinds: in lists, in place, in threads, checkpointed, under autocast, of a registered function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts: list[Any] = []
        thread = threading.Thread(target=lambda: parts.append(self.first(x)))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            parts.append(pool.submit(self.second, x).result())
        y = torch.cat(parts, dim=0) + 1
        y[:2].mul_(2)
        y = checkpoint(self.block, y, use_reentrant=True) + checkpoint(self.block, y, use_reentrant=False)
        with torch.autocast("cpu", torch.bfloat16):
            y = y + torch.matmul(y, self.first.weight).float()
        y = self.encoder(y.unsqueeze(0)).squeeze(0)
        low, high = torch.chunk(y, 2)
        return KERNELS.scaled(low, 2.0) + torch.sigmoid(high)


def bytes_of(*tensors: Any) -> bytes:
    return b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors if tensor is not None)


def made() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    net = Net()
    net.encoder.dropout.p = net.encoder.dropout1.p = net.encoder.dropout2.p = 0.0
    return net, torch.optim.SGD(net.parameters(), 0.1), torch.randn(3, 4)


def trained(debugger: Any, *, start: dict[str, Any] | None = None) -> bytes:
    net, optimizer, x = made()
    if debugger:
        debugger.register_custom_api(KERNELS, "scaled", "kernels")
    for _ in range(1):
        if debugger:
            debugger.start(net, **(start or {}))
        loss = net(x).sum()
        with torch.no_grad():
            net.eval()(x)
            net.train()
        loss.backward()
        (again,) = torch.autograd.grad(net.first(x).sum(), [net.first.weight])
        raised = ""
        try:
            torch.matmul(x, x)
        except RuntimeError as error:
            raised = str(error)
        if debugger:
            debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        if debugger:
            debugger.step()
    if debugger:
        debugger.restore_custom_api(KERNELS, "scaled")
    return bytes_of(*net.parameters(), loss, again) + raised.encode()


def trained_little(debugger: Any) -> bytes:
    net, optimizer, x = made()
    for _ in range(2):
        if debugger:
            debugger.start(net)
        torch.cat([net.block(x), torch.log(x)]).nansum().backward()
        if debugger:
            debugger.stop()
        optimizer.step()
        if debugger:
            debugger.step()
    return bytes_of(*net.parameters())


def trained_in_a_range(debugger: Any) -> bytes:
    return trained(debugger, start={"token_range": [0, 0], "rank_id": 0})


def saved(debugger: Any) -> bytes:
    net, optimizer, x = made()
    for _ in range(2):
        if debugger:
            debugger.start(net)
        y = net.first(x)
        if debugger:
            debugger.save({"y": y, "parts": [y, 1]}, "value")
        y.sum().backward()
        optimizer.step()
        if debugger:
            debugger.stop()
            debugger.step()
    return bytes_of(*net.parameters())


def monitored(debugger: Any) -> bytes:
    net, optimizer, x = made()
    if debugger:
        debugger.monitor(optimizer)
    for _ in range(2):
        net(x).sum().backward()
        optimizer.step()
    if debugger and debugger._gradients:
        debugger._gradients.stop()
    return bytes_of(*net.parameters())


def perturbed(debugger: Any) -> bytes:
    net, _, x = made()
    if debugger:
        debugger.perturb({"x": [x]}, roundings=1)
        debugger.start(net)
        debugger.stop()
    return bytes_of(net.block(x))


def one_rank() -> Any:
    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    return distributed


def communicated(debugger: Any) -> bytes:
    distributed = one_rank()
    net, _, x = made()
    if debugger:
        debugger.set_init_step(3)
        debugger.start(net)
    y = net.first(x).detach()
    handle = distributed.all_reduce(y, async_op=True)
    handle.wait()
    distributed.all_reduce(y)
    lost = distributed.all_reduce(x, async_op=True)
    if debugger:
        debugger.stop()
        debugger.step()
    lost.wait()
    return bytes_of(x, y)


def sharded(debugger: Any) -> bytes:
    """FSDP2 of one rank, whose gradients are reduced twice and clipped in both ways."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    one_rank()
    net, _, x = made()
    net = fully_shard(net.block, mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("shards",)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    if debugger:
        debugger.start(net)
    for _ in range(2):
        net(x).sum().backward()
    norm = nn.utils.clip_grad_norm_((parameter for parameter in net.parameters()), 1.0)
    total = nn.utils.get_total_norm([parameter.grad for parameter in net.parameters()])
    nn.utils.clip_grads_with_norm_(net.parameters(), 0.5, total)
    optimizer.step()
    if debugger:
        debugger.stop()
        debugger.step()
    return bytes_of(*(tensor.full_tensor() for tensor in (*net.parameters(), norm, total)))


def staged(debugger: Any) -> bytes:
    """A pipeline of one stage, and an optimizer with a closure that it calls twice."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    distributed = one_rank()
    net, _, x = made()
    net = net.block
    schedule = ScheduleGPipe(PipelineStage(net, 0, 1, torch.device("cpu")), 3, loss_fn=lambda x, y: (x - y).sum())
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        schedule.step(x, target=x, losses=losses)
        return torch.stack(losses).sum()

    raised = ""
    if debugger:
        debugger.start(net)
    optimizer.step(closure)
    try:
        distributed.batch_isend_irecv([distributed.P2POp(distributed.isend, x, 0)])
    except (RuntimeError, ValueError) as error:
        raised = type(error).__name__
    if debugger:
        debugger.stop()
        debugger.step()
    return bytes_of(*net.parameters()) + raised.encode()


SMALL = nn.Linear(4, 4)
COMPILED = torch.compile(lambda x: torch.relu(SMALL(x)) + 1, backend="eager")


def compiled(debugger: Any) -> bytes:
    torch.manual_seed(0)
    nn.init.constant_(SMALL.weight, 0.5)
    x = torch.ones(2, 4)
    if debugger:
        debugger.start(nn.Sequential(SMALL))
    torch.compile(SMALL, backend="eager")
    y = COMPILED(x) * 2
    if debugger:
        debugger.stop()
        debugger.step()
    return bytes_of(y)


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts operators, as the script's own mode would."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def counted(debugger: Any) -> bytes:
    net, _, x = made()
    with Counting() as mode:
        if debugger:
            debugger.start(net)
        net.first(x).sum().backward()
        if debugger:
            debugger.stop()
            debugger.step()
    return bytes_of(net.first.weight.grad) + "\n".join(mode.seen).encode()


class Own(torch.Tensor):
    pass


def written(debugger: Any) -> bytes:
    """Tensors that are written to: recorded, left out, by nobody's call; more of them than are kept."""
    net, _, x = made()
    if debugger:
        debugger.start(net)
    state = torch.empty(3, 4)
    for column in range(4):
        state[:, column] = torch.exp(x[:, column])
    torch._foreach_add_([state, x], 1.0)
    torch.exp(state.data.T)
    state.mul_(2)
    torch.exp(state.as_subclass(Own))
    with torch.no_grad():
        net.first.bias.add_(1.0)
    net.first.bias.data = torch.ones(4)
    for _ in range(20):
        state = torch.exp(net.first(state) + net.first.bias[None, :])
    if debugger:
        debugger.stop()
        debugger.step()
    return bytes_of(state, x)


def with_level(level: str, task: str = "statistics", **more: Any) -> dict[str, Any]:
    section = {name: more.pop(name) for name in ("scope", "list", "summary_mode", "overflow_nums") if name in more}
    return {"task": task, "level": level, task: section, **more}


#: (config.json but for its dump_path, training) by name.
SCENARIOS: dict[str, tuple[dict[str, Any], Any]] = {
    "mix": (with_level("mix"), trained),
    "tensors in a thread": (with_level("mix", "tensor", async_dump=True), trained_little),
    "fingerprints in a range": (with_level("mix", summary_mode="fingerprint"), trained_in_a_range),
    "a list": (with_level("L1", "tensor", list=["cat"]), trained_little),
    "sketches": (with_level("L1", summary_mode="sketch"), trained_little),
    "overflow": (with_level("L1", "overflow_check", overflow_nums=1), trained_little),
    "save": (with_level("debug", "tensor"), saved),
    "monitor": ({"task": "grad_probe", "grad_probe": {"grad_level": "L2", "bounds": [-1, 0, 1]}}, monitored),
    "communication": (with_level("L1"), communicated),
    "sharded": (with_level("mix"), sharded),
    "staged": (with_level("mix"), staged),
    "compiled": (with_level("mix"), compiled),
    "perturb": (with_level("L0"), perturbed),
    "modes": (with_level("mix"), counted),
    "writes": (with_level("L1", list=["exp", "_foreach_add_", "__setitem__", "linear"]), written),
}
