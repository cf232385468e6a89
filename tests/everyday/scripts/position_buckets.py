"""Train attention with the relative positions of T5: near ones count exactly, far ones by a logarithm.

Of distance 0 the logarithm is -Inf, and `where` takes the other value.
"""

import math

import torch

LENGTH, BUCKETS, FARTHEST = 12, 8, 16


def bucket_of(distance):
    exact = BUCKETS // 2
    far = torch.log(distance.float() / exact) / math.log(FARTHEST / exact) * (BUCKETS - exact)
    far = torch.minimum(exact + far.long(), torch.full_like(distance, BUCKETS - 1))
    return torch.where(distance < exact, distance, far)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(8, 8, bias=False) for _ in range(3))
        self.bias = torch.nn.Embedding(BUCKETS, 1)

    def forward(self, hidden):
        places = torch.arange(LENGTH)
        distance = (places[:, None] - places[None, :]).clamp(min=0)
        scores = self.query(hidden) @ self.key(hidden).transpose(1, 2)
        scores = scores + self.bias(bucket_of(distance)).squeeze(-1)
        return scores.softmax(-1) @ self.value(hidden)


torch.manual_seed(0)
model = Attention()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(2, LENGTH, 8)).square().mean().backward()
optimizer.step()
