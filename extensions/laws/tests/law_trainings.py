"""A small training in which one law at a time can be broken."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from msprobe_laws.pytorch.watch import TorchWatch


class Net(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.first, self.norm, self.inner, self.last = (
            nn.Linear(32, 64),
            nn.LayerNorm(64),
            nn.Linear(64, 64),
            nn.Linear(64, 8),
        )
        self.one, self.other = nn.Dropout(0.2), nn.Dropout(0.2)
        self.register_buffer("mean", torch.zeros(8))
        if fault in ("a tie is lost", "weights are assigned", "memory is given anew"):
            self.inner.weight = nn.Parameter(torch.eye(64))
            self.tied = nn.Linear(64, 64, bias=False)
            self.tied.weight = self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault != "a checkpoint gets data only":  # it is called before, by the script
            x = self.first(x)
        if self.fault == "the graph is cut":
            x = x.detach()
        if self.fault == "random numbers begin anew":
            torch.manual_seed(5)
        x = self.inner(self.one(self.norm(x)))
        if self.fault == "random numbers begin anew":
            torch.manual_seed(5)
        if self.fault == "a checkpoint draws anew":
            again = nn.Sequential(self.other, nn.Tanh())  # a checkpoint stops before it has all of its last layer again
            x = checkpoint(again, x, use_reentrant=False, preserve_rng_state=False)
        else:
            x = self.other(x)
        if self.fault == "a function drops in evaluation":
            x = functional.dropout(x, 0.3)
        return self.last(torch.relu(x))


class SGD(torch.optim.Optimizer):
    """The script's own, right unless a fault says otherwise."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, fault: str, net: Net) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.0, "weight_decay": 0.0})
        self.fault, self.net = fault, net

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for item in group["params"]:
                if self.fault == "it moves half as far":
                    item.add_(item.grad, alpha=-0.5 * group["lr"])
                elif self.fault == "it makes new memory":
                    item.data = item.data - group["lr"] * item.grad
                else:
                    item.add_(item.grad, alpha=-group["lr"])
        if self.fault == "a buffer changes its dtype":
            self.net.mean = self.net.mean.half()


class AdamW(torch.optim.Optimizer):
    """The script's own, with decoupled decay, and moments of its own gradients, unless a fault says otherwise."""

    def __init__(self, parameters: Iterable[nn.Parameter], fault: str) -> None:
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1})
        self.fault = fault

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            (first, second), lr, decay = group["betas"], group["lr"], group["weight_decay"]
            alike = [item for item in group["params"] if item.shape == (64,)]
            for item in group["params"]:
                state, gradient = self.state[item], item.grad
                if not state:
                    state.update(
                        step=torch.tensor(0.0), exp_avg=torch.zeros_like(item), exp_avg_sq=torch.zeros_like(item)
                    )
                state["step"] += 1
                if self.fault == "decay is coupled":
                    gradient = gradient + decay * item
                else:
                    item.mul_(1 - lr * decay)
                if self.fault == "moments are made of another gradient" and item is alike[0]:
                    gradient = alike[1].grad
                state["exp_avg"].lerp_(gradient, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
                count = float(state["step"])
                below = (state["exp_avg_sq"] / (1 - second**count)).sqrt() + group["eps"]
                item.addcdiv_(state["exp_avg"] / (1 - first**count), below, value=-lr)


class Lion(torch.optim.Optimizer):
    """As its paper has it, arXiv:2302.06675, algorithm 2: no counter of steps is kept."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1})

    def _init_group(self) -> None:
        for item in self.param_groups[0]["params"]:
            if not self.state[item]:
                self.state[item]["exp_avg"] = torch.zeros_like(item)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self._init_group()
        (group,) = self.param_groups
        for item in group["params"]:
            self.update(item, group, self.state[item])

    def update(self, item: nn.Parameter, group: dict[str, Any], state: dict[str, Any]) -> None:
        first, second = group["betas"]
        sign = state["exp_avg"].lerp(item.grad, 1 - first).sign()
        item.mul_(1 - group["lr"] * group["weight_decay"]).sub_(sign, alpha=group["lr"])
        state["exp_avg"].lerp_(item.grad, 1 - second)


class Lamb(Lion):
    """As its paper has it, arXiv:1904.00962, algorithm 2."""

    def update(self, item: nn.Parameter, group: dict[str, Any], state: dict[str, Any]) -> None:
        (first, second), count = group["betas"], state.setdefault("step", 0) + 1
        state["step"] = count
        state["exp_avg"].lerp_(item.grad, 1 - first)
        square = state.setdefault("exp_avg_sq", torch.zeros_like(item)).lerp_(item.grad.square(), 1 - second)
        move = state["exp_avg"] / (1 - first**count) / ((square / (1 - second**count)).sqrt() + group["eps"])
        move += group["weight_decay"] * item
        item.sub_(move, alpha=group["lr"] * float(item.norm() / move.norm()))


#: Classes of the script's own whose formulas are known by their names.
OWN = {"Lion": Lion, "Lamb": Lamb}

#: Fault by fault, the law that it breaks, and a parameter or other part that the finding names; "" for any.
PLANTED = {
    "gradients are not set to zero": ("gradients-are-fresh", "first.weight"),
    "the graph is cut": ("gradients-arrive", "first.weight"),
    "random numbers begin anew": ("dropout-independent", "other"),
    "a function drops in evaluation": ("dropout-off-in-eval", "Net"),
    "a checkpoint draws anew": ("recomputation-repeats", "other"),
    "a parameter is in no optimizer": ("in-an-optimizer", "last.bias"),
    "an optimizer has it twice": ("in-one-optimizer", "last.weight"),
    "two optimizers have it": ("in-one-optimizer", "last.weight"),
    "decay is coupled": ("decay-as-declared", ""),
    "moments are made of another gradient": ("moments-formula", "first.bias"),
    "it moves half as far": ("update-formula", ""),
    "it makes new memory": ("storage-kept", "first.weight"),
    "a buffer changes its dtype": ("buffers-kept", "mean"),
    "two states are one": ("own-state", "first.weight"),
    "two counters are one": ("step-counter", "first.weight"),
    "states are thrown away": ("state-continues", "first.weight"),
    "a copy is trained": ("in-an-optimizer", "first.weight"),
    "nothing is computed": ("something-updated", "first.weight"),
    "the learning rate is no number": ("hyper-parameters", "group 0"),
    "bfloat16 without master weights": ("updates-arrive", ""),
    "the norm is that of one tensor": ("clip-norm", "first.weight"),
    "gradients are clipped while scaled": ("scale-removed", "first.weight"),
    "a step gets scaled gradients": ("scale-removed", "first.weight"),
    "a parameter is frozen": ("stays-trainable", "inner.weight"),
    "evaluation does not end": ("training-mode", "Net"),
    "a batch comes again": ("batches-differ", "Net"),
    "a tie is lost": ("ties-kept", "tied.weight"),
    "weights are assigned": ("ties-kept", "tied.weight"),
    "memory is given anew": ("ties-kept", "tied.weight"),
    "a checkpoint gets data only": ("gradients-arrive", "first.weight"),
    "the average has another decay": ("ema-decay", "first.weight"),
    "a decay feeds on itself": ("ema-decay", "first.weight"),
    "an own average takes nothing": ("ema-decay", "first.weight"),
    "an own average exchanges its shares": ("ema-decay", "first.weight"),
    "an own average grows": ("ema-decay", "first.weight"),
}
#: The same of a plain training of 12 steps.
PLANTED_PLAINLY = {
    "a loss counts twice": ("gradients-are-fresh", "loss"),
    "a step is taken twice": ("gradients-are-fresh", "first.weight"),
    "gradients are set to zero too late": ("gradients-are-fresh", "first.weight"),
    "gradients are clipped after the step": ("clip-norm", "first.weight"),
    "gradients are clipped in parts": ("clip-norm", "first.weight"),
    "clipping comes before the backward": ("clip-norm", "gradients"),
    "a loss is not scaled": ("scale-removed", ""),
    "a gradient is no number": ("something-updated", "first.weight"),
    "nothing is learned": ("hyper-parameters", "lr"),
    "a schedule advances in parts": ("schedules-advance", "StepLR"),
    "a schedule goes first": ("schedules-advance", "StepLR"),
    "a schedule stands still": ("schedules-advance", "StepLR"),
    "a schedule is of another optimizer": ("schedules-advance", "StepLR"),
    "a schedule goes too far": ("schedules-advance", "CosineAnnealingLR"),
    "workers share a seed": ("batches-differ", ""),
    "a generator is in each worker": ("batches-differ", ""),
    "passes share a seed": ("batches-differ", ""),
    "passes share an order": ("batches-differ", ""),
    "elements share a seed": ("batches-differ", ""),
    "an optimizer is made anew": ("state-continues", "first.weight"),
    "a state is put back": ("state-continues", "first.weight"),
    "a frozen layer is moved": ("stays-trainable", "first.weight"),
    "layers are in a list": ("in-an-optimizer", "Linear.weight"),
    "dropout is in a list": ("dropout-off-in-eval", "Dropout"),
    "a batch in parts is divided twice": ("gradients-are-fresh", "first.weight"),
    "a batch in parts is lost": ("gradients-are-fresh", "first.weight"),
    "scaled gradients are divided": ("scale-removed", "first.weight"),
    "clipping has a list from before": ("clip-norm", "last.weight"),
    "clipping gets used gradients": ("clip-norm", "first.weight"),
}


class Hidden(nn.Module):
    """Has layers that are no Modules of it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layers = [layer]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layers[0](x))


class Average:
    """The script's own, whose decay grows with the steps, unless a fault says otherwise."""

    def __init__(self, net: Net, fault: str) -> None:
        self.average, self.fault = copy.deepcopy(net), fault
        self.decay, self.largest, self.count = 0.99, 0.99, 0

    @torch.no_grad()
    def update(self, net: Net) -> None:
        self.count += 1
        largest = self.decay if self.fault == "a decay feeds on itself" else self.largest
        self.decay = min(largest, (1 + self.count) / (10 + self.count))
        for own, item in zip(self.average.parameters(), net.parameters()):
            taken = own if self.fault == "an own average takes nothing" else item
            decay = 0.01 if self.fault == "an own average exchanges its shares" else self.decay
            own.copy_(decay * own + (0.5 if self.fault == "an own average grows" else 1 - decay) * taken)


def _average(decay: float) -> Callable[..., None]:
    """An averaging function that swaps the two shares."""

    def update(averaged: Any, current: Any, count: Any) -> None:
        torch._foreach_lerp_(averaged, current, decay)

    return update


def train(
    folder: Path | None, fault: str = "", steps: int = 6, laws_meant: dict[str, str] | None = None
) -> list[torch.Tensor]:
    """The parameters after a training, watched into `folder` where one is given."""
    torch.manual_seed(0)
    watch = None
    if folder is not None:
        watch = TorchWatch(folder, (), laws_meant)
        watch.install()
    try:
        return [item.detach().clone() for item in _train(fault, steps)]
    finally:
        if watch is not None:
            watch.close()


def _train(fault: str, steps: int) -> list[nn.Parameter]:
    net = Net(fault)
    if fault == "bfloat16 without master weights":
        net = net.bfloat16()
    parameters = [
        item
        for name, item in net.named_parameters()
        if fault != "a parameter is in no optimizer" or name != "last.bias"
    ]
    if fault == "weights are assigned":
        net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)
    if fault == "memory is given anew":
        weights = net.state_dict()
        with torch.device("meta"):
            net = Net(fault)
        net.to_empty(device="cpu").load_state_dict(weights)
    if fault in ("weights are assigned", "memory is given anew"):
        parameters = list(net.parameters())
    if fault == "an optimizer has it twice":
        parameters.append(net.last.weight)
    if fault == "a copy is trained":
        parameters = list(copy.deepcopy(net).parameters())
    optimizer: torch.optim.Optimizer
    if fault in ("decay is coupled", "moments are made of another gradient"):
        optimizer = AdamW(parameters, fault)
    elif fault in ("it moves half as far", "it makes new memory", "a buffer changes its dtype"):
        optimizer = SGD(parameters, 0.1, fault, net)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-5 if "bfloat16" in fault else 1e-3, weight_decay=0.1)
    second = torch.optim.SGD(net.last.parameters(), lr=0.1) if fault == "two optimizers have it" else None
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaled" in fault)
    averaged = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=_average(0.9)) if "average has" in fault else None
    own_average = Average(net, fault)
    batches = [(torch.randn(16, 32), torch.randint(0, 8, (16,))) for _ in range(steps)]
    for number, (x, y) in enumerate(batches):
        x = batches[3][0] if fault == "a batch comes again" and number > 3 else x
        if fault != "gradients are not set to zero":
            optimizer.zero_grad()
            net.zero_grad()
        if fault == "a function drops in evaluation" and number == 2:
            net.eval()
            net(x)
            net.train()
        if fault == "evaluation does not end" and number == 3:
            net.eval()
        if fault == "a checkpoint gets data only":
            x = checkpoint(net.first, x, use_reentrant=True)
        loss = functional.cross_entropy(net(x.to(net.first.weight.dtype)).float(), y)
        if fault != "nothing is computed" or number != 2:
            scaler.scale(loss).backward()
        if fault == "gradients are clipped while scaled":
            nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
            continue
        if fault == "the norm is that of one tensor":
            nn.utils.clip_grads_with_norm_(parameters, 1.0, parameters[0].grad.norm())
        elif fault != "a copy is trained" and not scaler.is_enabled():
            nn.utils.clip_grad_norm_(parameters, 1.0)
        if number == 3:
            _break(fault, net, optimizer)
        optimizer.step()
        if second is not None:
            second.step()
        if averaged is not None:
            averaged.update_parameters(net)
        own_average.update(net)
    return list(net.parameters())


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    """Rows to which noise is added, from NumPy's random numbers or from a generator of its own."""

    def __init__(self, fault: str) -> None:
        self.fault, self.generator = fault, np.random.default_rng(0)
        self.rows = torch.randn(48, 32)

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.fault == "elements share a seed":
            np.random.seed(0)
        is_own = self.fault == "a generator is in each worker"
        noise = self.generator.standard_normal(32) if is_own else np.random.randn(32)
        return self.rows[index] + torch.from_numpy(noise).float()


def _seed_alike(worker: int) -> None:
    np.random.seed(0)


def _seed_by_number(worker: int) -> None:
    np.random.seed(worker)


def _batches(fault: str) -> Iterator[torch.Tensor]:
    """Two passes of 6 batches."""
    seeds = {"workers share a seed": _seed_alike, "passes share a seed": _seed_by_number}
    workers = 2 if fault in (*seeds, "a generator is in each worker") else 0
    rows = Noisy(fault)
    for number in range(2):
        generator = torch.Generator().manual_seed(0 if fault == "passes share an order" else number)
        yield from torch.utils.data.DataLoader(
            rows, 8, shuffle=True, num_workers=workers, worker_init_fn=seeds.get(fault), generator=generator
        )


def train_plainly(folder: Path, fault: str) -> None:
    """A regression of two layers, watched into `folder`."""
    torch.manual_seed(0)
    watch = TorchWatch(folder, ())
    watch.install()
    try:
        _train_plainly(fault)
    finally:
        watch.close()


def _train_plainly(fault: str) -> None:
    net = nn.Sequential(OrderedDict(first=nn.Linear(32, 16), act=nn.Tanh(), last=nn.Linear(16, 4)))
    given = list(net.parameters())
    if "in a list" in fault:
        net.act = Hidden(nn.Linear(16, 16) if "layers" in fault else nn.Dropout(0.5))
    if fault == "clipping has a list from before":
        net.last = nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    other = nn.Linear(32, 1)
    for_other = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaled" in fault)
    schedule: Any = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    if fault == "a schedule goes too far":
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    if fault == "nothing is learned":
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 0.0)
    if fault == "a schedule is of another optimizer":
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    parts = 2 if "in parts" in fault else 1
    for number, x in enumerate(_batches(fault)):
        if fault == "a schedule goes first":
            schedule.step()
        if fault == "an optimizer is made anew":
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        if fault == "a state is put back" and number == 1:
            early = copy.deepcopy(optimizer.state_dict())
        if fault == "a state is put back" and number == 6:
            optimizer.load_state_dict(early)
        if fault == "a frozen layer is moved" and number == 6:
            net.first.requires_grad_(False)
        if fault == "dropout is in a list" and number:
            with torch.no_grad():
                net.eval()(x)
            net.train()
        if fault == "clipping gets used gradients":
            for_other.zero_grad()
            other(x).square().mean().backward()
            if number:
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            for_other.step()
            optimizer.zero_grad()
        if fault == "clipping comes before the backward":
            optimizer.zero_grad(set_to_none=False)
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        loss = net(x).square().mean() * (float("nan") if fault == "a gradient is no number" and number == 5 else 1.0)
        if fault == "a loss counts twice":
            loss.backward(retain_graph=True)
        if "batch in parts" in fault:
            loss = loss / parts
        (loss if number > 1 and fault == "a loss is not scaled" else scaler.scale(loss)).backward()
        for item in net.parameters():
            if fault == "scaled gradients are divided":
                item.grad.div_(scaler.get_scale())
            if fault == "a batch in parts is divided twice" and number % parts:
                item.grad.div_(parts)
        if fault == "a batch in parts is lost" and number % parts == 0:
            optimizer.zero_grad()
        if fault in ("clipping has a list from before", "clipping gets used gradients"):
            nn.utils.clip_grad_norm_(given, 0.1)
        if fault == "gradients are set to zero too late":
            optimizer.zero_grad(set_to_none=False)
        if fault == "gradients are clipped in parts":
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        if number % parts == parts - 1:
            scaler.step(optimizer)
            scaler.update()
            if fault == "a step is taken twice":
                optimizer.step()
            if fault == "gradients are clipped after the step":
                nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            if fault != "clipping gets used gradients":
                optimizer.zero_grad(set_to_none=fault != "a frozen layer is moved")
        if fault not in ("a schedule goes first", "a schedule stands still") and (parts == 1 or "schedule" in fault):
            schedule.step()
    if parts > 1 and "schedule" not in fault:
        schedule.step()


def _break(fault: str, net: Net, optimizer: torch.optim.Optimizer) -> None:
    """What goes wrong before the step of number 3."""
    state = optimizer.state.get(net.first.weight, {})
    if fault == "two states are one":
        state["exp_avg_sq"] = state["exp_avg"]
    elif fault == "two counters are one":
        state["step"] = optimizer.state[net.first.bias]["step"]
    elif fault == "states are thrown away":
        optimizer.state.clear()
    elif fault == "the learning rate is no number":
        optimizer.param_groups[0]["lr"] = float("nan")
    elif fault == "a parameter is frozen":
        net.inner.weight.requires_grad = False
        net.inner.weight.grad = None
    elif fault == "a tie is lost":
        net.tied.weight = nn.Parameter(net.tied.weight.detach().clone())
