"""PyTorch trainings written after the last mends of the laws, of the mended classes, and right ones like them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from quality.laws.entries import clean, violation
from quality.laws.torch_gradients import Lora
from quality.laws.torch_parts import Gpt, Mlp, next_token_loss, rows, sentences

_MLP = tuple(name for name, _ in Mlp().named_parameters())


def language_model(model: Gpt, *optimizers: torch.optim.Optimizer) -> None:
    """Ten steps."""
    for tokens in sentences():
        for optimizer in optimizers:
            optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        for optimizer in optimizers:
            optimizer.step()


@violation(
    "head twice in the list of an optimizer",
    laws=("two optimizers", "formula", "step", "moments"),
    at="head.weight",
    wrong="The head is added to the list of all parameters, which has it already.",
)
def head_twice() -> None:
    """A language model with AdamW."""
    torch.manual_seed(0)
    model = Gpt()
    language_model(model, torch.optim.AdamW([*model.parameters(), *model.head.parameters()], lr=1e-3))


@violation(
    "optimizer made between sharding the blocks and the root",
    laws="no optimizer",
    at=("embedding.weight", "positions.weight", "norm.weight", "norm.bias", "head.weight"),
    wrong="fully_shard of the whole model puts new parameters outside the blocks; the optimizer keeps the old ones.",
    source="PyTorch #149205",
    link="https://github.com/pytorch/pytorch/issues/149205",
    ranks=2,
)
def sharded_between() -> None:
    """A language model on two ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, mesh = Gpt(), init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fully_shard(model, mesh=mesh)
    for tokens in sentences(seed=1 + dist.get_rank()):
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
    dist.destroy_process_group()


@violation(
    "weights assigned to a model on the meta device",
    laws="tied",
    at=("embedding.weight", "head.weight"),
    wrong="The tied model is made without memory, and assigned weights part head and embedding before the first step.",
    source="PyTorch #188346",
    link="https://github.com/pytorch/pytorch/issues/188346",
)
def assigned_first() -> None:
    """A language model that begins with the weights of a file."""
    torch.manual_seed(0)
    weights = {name: value.clone() for name, value in Gpt(is_tied=True).state_dict().items()}
    with torch.device("meta"):
        model = Gpt(is_tied=True)
    model.load_state_dict(weights, assign=True)
    language_model(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


class Muon(torch.optim.Optimizer):
    """An own Muon, with `iterations` of Newton and Schulz; what has less than two dimensions goes by AdamW."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, iterations: int = 5) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.95, "betas": (0.9, 0.95), "eps": 1e-8})
        self.iterations = iterations

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step of each parameter."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                if param.ndim < 2 or param.shape[0] == 32:  # biases, and what belongs to words
                    self._adam(param, group)
                    continue
                state = self.state[param]
                buffer = state.setdefault("momentum_buffer", torch.zeros_like(param))
                buffer.mul_(group["momentum"]).add_(param.grad)
                move = self._orthogonal(param.grad + group["momentum"] * buffer)
                param.add_(move, alpha=-group["lr"] * 0.2 * max(param.shape) ** 0.5)

    def _adam(self, param: nn.Parameter, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[param], group["betas"]
        state["step"] = state.get("step", 0) + 1
        first = state.setdefault("moment1", torch.zeros_like(param)).lerp_(param.grad, 1 - beta1)
        second = state.setdefault("moment2", torch.zeros_like(param)).lerp_(param.grad.square(), 1 - beta2)
        scale = (1 - beta1 ** state["step"]) / (1 - beta2 ** state["step"]) ** 0.5
        param.add_(first / (second.sqrt() + group["eps"]), alpha=-group["lr"] / scale)

    def _orthogonal(self, move: Tensor) -> Tensor:
        move = move / move.norm()
        for _ in range(self.iterations):
            gram = move @ move.T
            move = 3.4445 * move + (-4.775 * gram + 2.0315 * gram @ gram) @ move
        return move


@violation(
    "own Muon that only normalises",
    laws="formula",
    at=("blocks", "positions.weight"),
    wrong="The iterations of an own Muon are left out: the momentum is divided by its norm.",
)
def own_muon() -> None:
    """A language model; all parameters by one class."""
    torch.manual_seed(0)
    model = Gpt()
    language_model(model, Muon(model.parameters(), lr=0.02, iterations=0))


@violation(
    "first part of a checkpointed sequence gets no gradient",
    laws="no gradient",
    at=("0.weight", "0.bias", "2.weight", "2.bias"),
    wrong="The first segment of a reentrant checkpoint_sequential gets data, which need no gradient.",
    source="PyTorch documentation of checkpoint_sequential",
    link="https://docs.pytorch.org/docs/stable/checkpoint.html",
)
def checkpointed_sequence() -> None:
    """A regression with two segments."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(checkpoint_sequential(model, 2, x, use_reentrant=True), y).backward()
        optimizer.step()


class Follower:
    """A moving average with a decay that grows up to `largest`; `wrong` computes it from the average itself."""

    def __init__(self, parameters: Iterable[nn.Parameter], largest: float, *, wrong: bool = False) -> None:
        self.average = [param.detach().clone() for param in parameters]
        self.largest, self.decay, self.count, self.wrong = largest, largest, 0, wrong

    @torch.no_grad()
    def update(self, parameters: Iterable[nn.Parameter]) -> None:
        """Follow."""
        self.count += 1
        self.decay = min(self.largest, (1 + self.count) / (10 + self.count))
        for average, param in zip(self.average, parameters):
            taken = average if self.wrong else param
            average.copy_(self.decay * average + (1 - self.decay) * taken)


def followed(*, wrong: bool, steps: int) -> None:
    """A regression with averaged weights."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ema = Follower(model.parameters(), 0.99, wrong=wrong)
    for x, y in rows(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        ema.update(model.parameters())


@violation(
    "the average is computed from itself",
    laws="EMA",
    at=_MLP,
    wrong="The average is mixed with itself in place of the weights: it stays what it was.",
)
def averages_itself() -> None:
    """A regression with averaged weights."""
    followed(wrong=True, steps=10)


@clean("average with a decay that warms up")
def warms_up() -> None:
    """The class keeps the decay of the last step."""
    followed(wrong=False, steps=30)


@clean("optimizer over a copied model")
def copied() -> None:
    """The copy is trained, and the model that it was made of is its target."""
    torch.manual_seed(0)
    target = Mlp()
    model = copy.deepcopy(target)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in rows():
        with torch.no_grad():
            near = target(x)
        optimizer.zero_grad()
        given = model(x)
        (F.mse_loss(given, y) + 0.1 * F.mse_loss(given, near)).backward()
        optimizer.step()


@clean("assigned weights that are tied again")
def tied_again() -> None:
    """Made on the meta device, loaded, tied; loaded and tied once more in the middle."""
    torch.manual_seed(0)
    weights = {name: value.clone() for name, value in Gpt(is_tied=True).state_dict().items()}
    with torch.device("meta"):
        model = Gpt(is_tied=True)
    for _ in range(2):
        model.load_state_dict(weights, assign=True)
        model.head.weight = model.embedding.weight
        language_model(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


@clean("checkpoint of data without use_reentrant")
def checkpointed_data() -> None:
    """The input needs no gradient, and the weights inside get theirs all the same."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        hidden = torch.tanh(checkpoint(model.encoder, x, use_reentrant=False))
        F.mse_loss(model.head(torch.tanh(model.hidden(hidden))), y).backward()
        optimizer.step()


@clean("Muon of PyTorch for all matrices of a language model")
def muon() -> None:
    """Without nesterov, with the scale of AdamW."""
    torch.manual_seed(0)
    model = Gpt()
    matrices = [item for name, item in model.named_parameters() if item.ndim == 2 and name.startswith("blocks.")]
    ids = {id(item) for item in matrices}
    others = [item for item in model.parameters() if id(item) not in ids]
    muons = torch.optim.Muon(matrices, lr=0.01, nesterov=False, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    language_model(model, muons, torch.optim.AdamW(others, lr=1e-3))


@clean("own Muon with AdamW in one class")
def right_muon() -> None:
    """All parameters by one class, which keeps moments under names of its own."""
    torch.manual_seed(0)
    model = Gpt()
    language_model(model, Muon(model.parameters(), lr=0.02))


@clean("reentrant checkpoint of adapters whose input needs a gradient")
def adapters() -> None:
    """The base is frozen; enable_input_require_grads of transformers does the same."""
    torch.manual_seed(0)
    model = Mlp()
    model.encoder, model.hidden = Lora(model.encoder), Lora(model.hidden)
    optimizer = torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        hidden = torch.tanh(checkpoint(model.encoder, x.requires_grad_(), use_reentrant=True))
        F.mse_loss(model.head(torch.tanh(model.hidden(hidden))), y).backward()
        optimizer.step()
