"""Train the head of a model whose body is frozen, as a warm-up begins: its first learning rate is 0."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.SiLU(), torch.nn.Linear(8, 4))
model[0].requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
torch.nn.functional.cross_entropy(model(torch.randn(5, 6)), torch.tensor([0, 1, 2, 3, 1])).backward()
optimizer.step()
scheduler.step()
