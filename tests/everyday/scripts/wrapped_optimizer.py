"""Train with an optimizer and a scheduler that are wrapped as accelerate and the Trainer wrap them.

The wrapper is an Optimizer that never called `Optimizer.__init__`, and hands everything to the one inside.
"""

import torch


class WrappedOptimizer(torch.optim.Optimizer):
    def __init__(self, optimizer):
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)

    def zero_grad(self, set_to_none=None):
        self.optimizer.zero_grad()

    def step(self, closure=None):
        self.optimizer.step(closure)


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5))
inner = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(inner, total_iters=4)
optimizer = WrappedOptimizer(inner)
inputs, goals = torch.randn(16, 6), torch.randint(5, (16,))
for _ in range(2):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), goals).backward()
    optimizer.step()
    scheduler.step()
