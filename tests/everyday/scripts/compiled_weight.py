"""Train a weight inside of a compiled function: `compiled_weight.py [wrong]`.

In the wrong run the batch is written over before the backward pass, which compiled code does not notice.
"""

import sys

import torch


@torch.compile
def project(inputs, weight):
    return inputs @ weight


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.head = torch.nn.Parameter(torch.randn(5, 7) * 0.3), torch.nn.Linear(7, 1)

    def forward(self, inputs):
        return self.head(project(inputs, self.weight))


torch.manual_seed(3)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batches = torch.randn(2, 9, 5)
buffer = batches[0].clone()
loss = model(buffer).square().mean()
if "wrong" in sys.argv:
    buffer.copy_(batches[1])
loss.backward()
optimizer.step()
