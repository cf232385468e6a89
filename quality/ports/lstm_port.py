"""The language model as a loop of cells over time, one product for input and state, and an Adam of its own."""

import sys

import torch
import torch.nn.functional as F
from material import kept, show
from torch import nn

BUG = sys.argv[1]


class Cell(nn.Module):
    def __init__(self, inner: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inner + 24, 96))
        self.bias1, self.bias2 = nn.Parameter(torch.zeros(96)), nn.Parameter(torch.zeros(96))

    def forward(self, x, state):
        h, c = state
        bias = self.bias1 if BUG == "bias" else self.bias1 + self.bias2
        gates = torch.cat((x, h), -1) @ self.weight + bias  # bug: bias
        enter, forget, new, leave = gates.chunk(4, -1)
        if BUG == "gates":
            new, leave = leave, new
        if BUG == "forget":
            forget = forget + 1.0  # bug: forget
        c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()  # bug: gates, forget
        return leave.sigmoid() * (c if BUG == "squash" else c.tanh()), c  # bug: gates, squash


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cells, self.head = nn.Embedding(64, 16), nn.ModuleList([Cell(16), Cell(24)]), nn.Linear(24, 64)

    def steps(self, tokens, states):
        for time, word in enumerate(tokens.unbind(1)):
            x = self.words(word)
            for place, cell in enumerate(self.cells):
                states[place] = cell(x, states[place])
                x = states[place][0]
            if BUG == "detach" and time == 4:
                states = [(h.detach(), c.detach()) for h, c in states]  # bug: detach
            yield self.head(x)

    def forward(self, tokens, hidden, cell):
        states = list(zip(hidden, cell, strict=True))
        if BUG == "layers":
            states.reverse()  # bug: layers
        return torch.stack(list(self.steps(tokens, states)), 1)


class Adam(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self):
        for value in (value for value in self.param_groups[0]["params"] if value.grad is not None):
            first, second = 0.1 * value.grad, 0.001 * value.grad.square()
            if BUG != "unbiased":
                first, second = first / (1 - 0.9), second / (1 - 0.999)
            value.sub_(0.02 * first / (second.sqrt() + 1e-8))  # bug: unbiased


weights, batch = kept()
state = {"words.weight": weights["embedding.weight"]}
state |= {f"head.{kind}": weights[f"decoder.{kind}"] for kind in ("weight", "bias")}
for layer in range(2):
    both = [weights[f"lstm.weight_{name}_l{layer}"] for name in ("ih", "hh")]
    state[f"cells.{layer}.weight"] = torch.cat(both, 1).T
    for place, name in enumerate(("ih", "hh"), 1):
        state[f"cells.{layer}.bias{place}"] = weights[f"lstm.bias_{name}_l{layer}"]
network = Network()
network.load_state_dict(state)
optimizer = Adam(network.parameters())
logits = network(batch["tokens"], batch["hidden"], batch["cell"])
loss = F.nll_loss(logits.log_softmax(-1).movedim(-1, 1), batch["targets"])
loss.backward()
optimizer.step()  # bug: unbiased
show(loss.item(), network.parameters())
