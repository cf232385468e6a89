"""Train with a value that no operation made and that is 3e-5 off: `leaf.py [weight|batch]`."""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(4, 8)
with torch.no_grad():
    model[2].weight.mul_(1 + 3e-5 * ("weight" in sys.argv))
    inputs.mul_(1 + 5e-5 * ("batch" in sys.argv))
model(inputs).square().mean().backward()
optimizer.step()
