"""Train a small convolutional network with batch norm, pooling and dropout: `pictures.py [betas|eval|tile]`.

`betas`: of Adam are others; `eval`: the mode of the model; `tile`: a kernel computes one tile 1 % too large.
"""

import sys
from contextlib import nullcontext

import torch
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy, interpolate, max_pool2d
from torch.utils._python_dispatch import TorchDispatchMode


class WrongKernel(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        output = function(*arguments, **(keywords or {}))
        if function.overloadpacket is torch.ops.aten.convolution and output.shape[1] == 16:
            output[:, :, :4, :4] *= 1.01
        return output


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.second, self.dropout, self.head = torch.nn.Conv2d(8, 16, 3), torch.nn.Dropout(0.2), torch.nn.Linear(16, 5)

    def forward(self, pictures):
        hidden = max_pool2d(torch.relu(self.norm(self.first(pictures))), 2)
        hidden = self.second(interpolate(hidden, scale_factor=2, mode="bilinear"))
        return self.head(self.dropout(adaptive_avg_pool2d(hidden, 1).flatten(1)))


torch.manual_seed(0)
model = Network()
optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95 if "betas" in sys.argv else 0.999))
if "eval" in sys.argv:
    model.eval()
pictures, goals = torch.randn(8, 3, 12, 12), torch.randint(5, (8,))
with WrongKernel() if "tile" in sys.argv else nullcontext():
    logits = model(pictures)
cross_entropy(logits, goals).backward()
optimizer.step()
