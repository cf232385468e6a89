"""Train a step that raises behind its backward pass."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.randn(16, 6)).square().mean()
loss.backward()
tokens_per_second = 16 / 0
optimizer.step()
