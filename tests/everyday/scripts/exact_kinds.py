"""Train one step of a model that is hard to compute in another dtype: `exact_kinds.py KIND`."""

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

kind = sys.argv[1]


class Rounded(torch.autograd.Function):
    """A product of rounded operands, whose derivative is rounded, too."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(values, weight)
        return values.half().float() @ weight.bfloat16().float()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, weight = context.saved_tensors
        gradient = gradient.to(torch.bfloat16).type(torch.float32)
        return gradient @ weight.t(), values.t() @ gradient


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.noise, self.norm = nn.Dropout(0.1), nn.BatchNorm1d(16)
        self.seen, self.turns = torch.zeros(16), torch.polar(torch.ones(8), torch.arange(8.0) / 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.last(getattr(self, kind)(values))

    def function(self, values: torch.Tensor) -> torch.Tensor:
        return torch.tanh(Rounded.apply(values, self.first.weight))

    def recomputed(self, values: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda inputs: self.noise(self.first(inputs.half().float())), values, use_reentrant=False)

    def reentrant(self, values: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda inputs: self.first(inputs).half().float(), values.requires_grad_(), use_reentrant=True)

    def state(self, values: torch.Tensor) -> torch.Tensor:
        """Tensors that are no buffers, are written in place, and are complex."""
        hidden = self.norm(self.first(values))
        with torch.no_grad():
            self.seen.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        turned = torch.view_as_complex(hidden.view(-1, 8, 2)) * self.turns
        return torch.view_as_real(turned).flatten(1) - self.seen

    def drawn(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.first(values) + torch.randn_like(values) + torch.rand(16) + torch.empty_like(values).normal_()
        return hidden * torch.bernoulli(torch.full_like(hidden, 0.9)) + functional.gumbel_softmax(hidden, -1)

    def constants(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.first(values.type(torch.float16).type_as(self.first.weight))
        lowest = torch.full((16,), torch.finfo(hidden.dtype).min, dtype=hidden.dtype)
        mask = torch.where(torch.arange(16) < 12, torch.zeros((), dtype=hidden.dtype), lowest)
        factors = 1 / 10 ** (torch.arange(16, dtype=torch.float16).float() / 16)
        return functional.softmax(hidden * factors + mask, -1, dtype=torch.float32) + torch.arange(16) / 7

    def scaled(self, values: torch.Tensor) -> torch.Tensor:
        """Under autocast, with a loss scaler."""
        return functional.gelu(self.first(values))


torch.manual_seed(1)
model = Model()
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cpu", enabled=kind == "scaled")
with torch.autocast("cpu", torch.bfloat16, enabled=kind == "scaled"):
    outputs = model(torch.randn(8, 16))
scaler.scale(functional.cross_entropy(outputs.float(), torch.randint(4, (8,)))).backward()
scaler.step(optimizer)
scaler.update()
