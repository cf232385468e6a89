"""Call an operation with a tensor that the other run does not give: `called_otherwise.py KIND with|without`."""

import sys

import torch
from torch.nn.functional import cross_entropy, layer_norm, linear, scaled_dot_product_attention as attention

KIND, IS_GIVEN = sys.argv[1], sys.argv[2] == "with"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, goals, weight = torch.randn(6, 8), torch.randint(8, (6,)), torch.rand(8) + 0.5
mask, everything = torch.ones(6, 6).tril().bool(), torch.ones(6, 6).bool()
hidden = model(inputs)
heads = hidden[None, None]
if KIND == "causal":
    loss = (
        attention(heads, heads, heads, **({"attn_mask": everything} if IS_GIVEN else {"is_causal": True}))
        .square()
        .mean()
    )
elif KIND == "mask":
    loss = attention(heads, heads, heads, **({"attn_mask": mask} if IS_GIVEN else {})).square().mean()
elif KIND == "cross_entropy":
    loss = cross_entropy(hidden, goals, **({"weight": weight} if IS_GIVEN else {}))
elif KIND == "layer_norm":
    loss = layer_norm(hidden, (8,), *([weight] if IS_GIVEN else [])).square().mean()
else:
    loss = linear(hidden, hidden, *([torch.ones(6)] if IS_GIVEN else [])).square().mean()
loss.backward()
optimizer.step()
