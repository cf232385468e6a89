"""Train a router whose softmax comes behind topk: with one expert a token its weight is one, and its gradient zero."""

import torch


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.head = torch.nn.Linear(12, 4), torch.nn.Linear(12, 5)
        self.experts = torch.nn.Parameter(torch.randn(4, 12, 12) * 0.2)

    def forward(self, tokens):
        weights, chosen = self.gate(tokens).topk(1, -1)
        weights = weights.softmax(-1)
        outputs = torch.einsum("td,edf->tef", tokens, self.experts)
        used = outputs.gather(1, chosen[..., None].expand(-1, -1, 12))
        return self.head((used * weights[..., None]).sum(1))


torch.manual_seed(3)
model = Experts()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens, goals = torch.randn(64, 12), torch.randint(5, (64,))
for _ in range(2):
    loss = torch.nn.functional.cross_entropy(model(tokens), goals)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
