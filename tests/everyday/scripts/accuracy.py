"""Train one step that measures its accuracy: argmax, topk, sort and max return indices."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, goals = torch.randn(16, 6), torch.randint(5, (16,))
logits = model(inputs)
right = (logits.argmax(-1) == goals).float().mean()
best, places = logits.topk(3, -1)
right_of_three = (places == goals[:, None]).any(-1).float().mean()
ordered, order = torch.sort(logits.detach(), descending=True)
largest, where = logits.max(dim=-1)
loss = torch.nn.functional.cross_entropy(logits, goals) + 0.01 * largest.mean()
loss.backward()
optimizer.step()
