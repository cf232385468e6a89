"""Train four convolutions, which are expensive to repeat."""

import torch

torch.manual_seed(0)
layers = [torch.nn.Conv2d(3 if place == 0 else 32, 32, 3, padding=1) for place in range(4)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 3, 64, 64)).square().mean().backward()
optimizer.step()
