"""Train one step of an attention layer: `attention.py [WORDS]`, words that change how it computes.

`wrong`: the kernel of softmax makes the last column 1 % too large. `autocast`: in bfloat16. `half`: the scores are cast
to float16. `halves`: products are sums of two. `dropout`: of the weights; `drawn`: other ones. `batch`: another batch.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

words = set(sys.argv[1:])


def wrong_softmax(keys: object, scores: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    powers = torch.exp(scores.float() - scores.float().amax(dim, keepdim=True))
    weights = (powers / powers.sum(dim, keepdim=True)).to(scores.dtype)
    weights[..., -1] *= 1.01
    return weights


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(40, 24), nn.Linear(24, 40)
        self.query, self.key = nn.Linear(24, 24), nn.Linear(24, 24)
        self.register_buffer("scale", torch.full((1,), 24**-0.5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = functional.layer_norm(self.table(tokens), (24,))
        keys = self.key(values).transpose(-1, -2)
        scores = self.scale * (
            torch.cat([part @ keys for part in self.query(values).chunk(2, -2)], -2)
            if "halves" in words
            else self.query(values) @ keys
        )
        if "half" in words:
            scores = scores.half().to(torch.float32)
        weights = functional.softmax(scores, -1)
        if "dropout" in words:
            weights = functional.dropout(weights, 0.2)
        return self.out(weights @ values)


if "wrong" in words:
    library = torch.library.Library("aten", "IMPL")
    library.impl("_softmax", wrong_softmax, "CPU", with_keyset=True)
torch.manual_seed(3)
model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(5 if "batch" in words else 4)
tokens, labels = torch.randint(40, (4, 16)), torch.randint(40, (64,))
torch.manual_seed(7 if "drawn" in words else 6)
with torch.autocast("cpu", dtype=torch.bfloat16, enabled="autocast" in words):
    logits = model(tokens)
functional.cross_entropy(logits.flatten(0, 1).float(), labels).backward()
optimizer.step()
