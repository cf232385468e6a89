"""Train on a machine whose kernel of gelu is right, or 1 % too large: `gelu.py [wrong]`."""

import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class WrongKernel(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        output = function(*arguments, **(keywords or {}))
        is_wrong = "wrong" in sys.argv and function.overloadpacket is torch.ops.aten.gelu
        return output * 1.01 if is_wrong else output


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 8), torch.nn.Linear(8, 5)

    def forward(self, inputs):
        return self.down(torch.nn.functional.gelu(self.up(inputs)))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, goals = torch.randn(16, 6), torch.randint(5, (16,))
with WrongKernel():
    loss = torch.nn.functional.cross_entropy(model(inputs), goals)
loss.backward()
optimizer.step()
