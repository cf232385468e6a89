"""Train a model with dropout in eval mode, which the evaluation before left on."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, goals = torch.randn(16, 6), torch.randint(5, (16,))
model.eval()
torch.nn.functional.cross_entropy(model(inputs), goals).backward()
optimizer.step()
