"""ViT in plain PyTorch: patches cut out and multiplied, fused qkv, softmax in steps."""

import sys

import torch
import torch.nn.functional as F
from material import kept
from torch import nn

BUG = sys.argv[1]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(32, 1e-12), nn.LayerNorm(32, 1e-12)
        self.qkv, self.back = nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        normed = self.first(x)
        joined = F.linear(normed, self.qkv.weight, None if BUG == "bias" else self.qkv.bias)  # bug: bias
        q, k, v = joined.unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind()
        scores = q @ k.mT  # bug: scale
        scores = scores / (32**0.5 if BUG == "scale" else 8**0.5)  # bug: scale
        shares = scores.softmax(-1)
        if BUG == "heads":
            x = x + self.back((shares @ v).flatten(2).view_as(x))  # bug: heads
        else:
            x = x + self.back((shares @ v).transpose(1, 2).flatten(2))
        wide = F.gelu(self.wide(self.second(x)), approximate="tanh" if BUG == "act" else "none")  # bug: act
        return x + self.narrow(wide)


class Viewer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(48, 32)
        self.token, self.places = nn.Parameter(torch.zeros(32)), nn.Parameter(torch.zeros(17, 32))
        self.layers, self.norm, self.head = nn.Sequential(Layer(), Layer()), nn.LayerNorm(32, 1e-12), nn.Linear(32, 5)

    def forward(self, pixels):
        cut = pixels.unfold(2, 4, 4).unfold(3, 4, 4)
        if BUG == "patches":
            patches = cut.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)  # bug: patches
        else:
            patches = cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = self.patch(patches)  # bug: patches
        token = self.token.expand(len(x), 1, 32)
        x = torch.cat((x, token) if BUG == "token" else (token, x), 1)  # bug: token
        x = self.layers(x + self.places)  # bug: token
        if BUG == "pool":
            return self.head(self.norm(x).mean(1))  # bug: pool
        return self.head(self.norm(x[:, -1 if BUG == "token" else 0]))


weights, batch = kept()
embedded = {key.removeprefix("vit.embeddings."): value for key, value in weights.items()}
state = {"token": embedded["cls_token"].reshape(32), "places": embedded["position_embeddings"].squeeze(0)}
state["patch.weight"] = embedded["patch_embeddings.projection.weight"].flatten(1)
state["patch.bias"] = embedded["patch_embeddings.projection.bias"]
names = {"layernorm_before": "first", "layernorm_after": "second", "attention.o_proj": "back"}
names |= {"mlp.fc1": "wide", "mlp.fc2": "narrow"}
for kind in ("weight", "bias"):
    state[f"norm.{kind}"], state[f"head.{kind}"] = weights[f"vit.layernorm.{kind}"], weights[f"classifier.{kind}"]
    for layer in range(2):
        old, new = f"vit.layers.{layer}.", f"layers.{layer}."
        for theirs, ours in names.items():
            state[f"{new}{ours}.{kind}"] = weights[f"{old}{theirs}.{kind}"]
        parts = [weights[f"{old}attention.{name}_proj.{kind}"] for name in "qkv"]
        state[f"{new}qkv.{kind}"] = torch.cat(parts)
viewer = Viewer()
viewer.load_state_dict(state)
optimizer = torch.optim.SGD(viewer.parameters(), 0.1)
loss = F.cross_entropy(viewer(batch["pixels"]), batch["labels"])
print(loss.item())
loss.backward()
optimizer.step()
