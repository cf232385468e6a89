"""Train a step that names its device in arguments: `devices.py [rounding]`.

`rounding`: products are computed in another precision and rounded, as another device would.
"""

import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cpu")


class OtherKernels(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.overloadpacket.__name__ in ("mm", "bmm", "addmm"):
            return function(*(value.double() for value in arguments), **(keywords or {})).float()
        return function(*arguments, **(keywords or {}))


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.value = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.places = torch.nn.Embedding(12, 32)

    def forward(self, hidden):
        places = torch.arange(12, device=DEVICE)
        hidden = hidden.to(DEVICE, non_blocking=True) + self.places(places)
        causal = torch.full((12, 12), torch.finfo(torch.float32).min, device=DEVICE).triu(1)
        scores = self.query(hidden) @ hidden.transpose(1, 2) * 0.2 + causal
        return scores.softmax(-1) @ self.value(hidden)


torch.manual_seed(0)
model = Attention().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
inputs = torch.randn(2, 12, 32)
if "rounding" in sys.argv:
    with OtherKernels():
        model(inputs).square().mean().backward()
else:
    model(inputs).square().mean().backward()
optimizer.step()
