"""A small training in which one law at a time can be broken."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from msprobe_laws.pytorch.watch import Watch


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
}


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
            own.copy_(self.decay * own + (1 - self.decay) * taken)


def _average(decay: float) -> Callable[..., None]:
    """An averaging function that swaps the two shares."""

    def update(averaged: Any, current: Any, count: Any) -> None:
        torch._foreach_lerp_(averaged, current, decay)

    return update


def train(folder: Path | None, fault: str = "", steps: int = 6) -> list[torch.Tensor]:
    """The parameters after a training, watched into `folder` where one is given."""
    torch.manual_seed(0)
    watch = None
    if folder is not None:
        watch = Watch(folder, ())
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
        x = batches[number - 1][0] if fault == "a batch comes again" and number == 4 else x
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
        net.inner.weight.requires_grad_(False)
        net.inner.weight.grad = None
    elif fault == "a tie is lost":
        net.tied.weight = nn.Parameter(net.tied.weight.detach().clone())
