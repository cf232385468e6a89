"""CLIP with the class MultiheadAttention and time first, as the first publication has it."""

import sys

import torch
import torch.nn.functional as F
from material import kept, show
from torch import nn
from torch.utils.checkpoint import checkpoint

BUG = sys.argv[1]


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, mask):
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, need_weights=False, attn_mask=mask)[0]  # bug: causal
        wide = self.up(self.norm2(x))
        wide = F.gelu(wide) if BUG == "act" else wide * torch.sigmoid(1.702 * wide)  # bug: act
        return x + self.down(wide)


class Tower(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(2)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x, mask=None):
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if BUG == "checkpointed" else block(x, mask)
        return x


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.text_places = nn.Embedding(64, 32), nn.Parameter(torch.zeros(12, 32))
        self.text, self.text_out = Tower(32, 4), nn.Parameter(torch.zeros(32, 16))
        self.patches, self.before = nn.Linear(48, 24, bias=False), nn.LayerNorm(24)
        self.whole, self.image_places = nn.Parameter(torch.zeros(24)), nn.Parameter(torch.zeros(10, 24))
        self.image, self.image_out = Tower(24, 3), nn.Parameter(torch.zeros(24, 16))
        self.temperature = nn.Parameter(torch.zeros(()))

    def read(self, tokens):
        time = tokens.shape[1]
        x = self.words(tokens.T) + self.text_places[:time, None]
        mask = None if BUG == "causal" else torch.full((time, time), float("-inf")).triu(1)
        x = self.text.norm(self.text(x, mask))
        ends = torch.full((3,), -1) if BUG == "end" else (tokens == 60).float().argmax(1)
        return x[ends, torch.arange(3)] @ self.text_out  # bug: end

    def see(self, pixels):
        patches = pixels.unfold(2, 4, 4).unfold(3, 4, 4).permute(2, 3, 0, 1, 4, 5).flatten(3).flatten(0, 1)
        x = torch.cat((self.whole.expand(1, 3, 24), self.patches(patches)))
        x = x + self.image_places.unsqueeze(1)  # bug: before
        if BUG != "before":
            x = self.before(x)
        x = self.image(x)  # bug: before
        return self.image.norm(x[0]) @ self.image_out

    def forward(self, tokens, pixels):
        image, text = self.see(pixels), self.read(tokens)
        image = F.normalize(image, dim=-1)
        if BUG != "length":
            text = F.normalize(text, dim=-1)
        factor = self.temperature if BUG == "temperature" else self.temperature.exp()
        return factor * image @ text.T  # bug: length, temperature


weights, batch = kept()
state = {"words.weight": weights["text_model.embeddings.token_embedding.weight"]}
state["text_places"] = weights["text_model.embeddings.position_embedding.weight"]
state["image_places"] = weights["vision_model.embeddings.position_embedding.weight"]
state["whole"] = weights["vision_model.embeddings.class_embedding"]
state["patches.weight"] = weights["vision_model.embeddings.patch_embedding.weight"].flatten(1)
state["text_out"], state["image_out"] = (weights[f"{name}_projection.weight"].T for name in ("text", "visual"))
state["temperature"] = weights["logit_scale"]
names = {"layer_norm1": "norm1", "layer_norm2": "norm2", "mlp.fc1": "up", "mlp.fc2": "down"}
names["self_attn.out_proj"] = "attention.out_proj"
for kind in ("weight", "bias"):
    state[f"before.{kind}"] = weights[f"vision_model.pre_layrnorm.{kind}"]
    state[f"text.norm.{kind}"] = weights[f"text_model.final_layer_norm.{kind}"]
    state[f"image.norm.{kind}"] = weights[f"vision_model.post_layernorm.{kind}"]
    for theirs, ours in (("text_model", "text"), ("vision_model", "image")):
        for layer in range(2):
            old, new = f"{theirs}.encoder.layers.{layer}.", f"{ours}.blocks.{layer}."
            parts = [weights[f"{old}self_attn.{name}_proj.{kind}"] for name in "qkv"]
            state[f"{new}attention.in_proj_{kind}"] = torch.cat(parts)
            for name, our in names.items():
                state[f"{new}{our}.{kind}"] = weights[f"{old}{name}.{kind}"]
network = Clip()
network.load_state_dict(state)
if "adamw" in sys.argv:
    optimizer = torch.optim.AdamW(network.parameters(), 0.001)
else:
    optimizer = torch.optim.SGD(network.parameters(), 0.05)
similar = network(batch["tokens"], batch["pixels"])
labels = torch.arange(3)
loss = F.cross_entropy(similar, labels)  # bug: sides
if BUG != "sides":
    loss = (loss + F.cross_entropy(similar.T, labels)) / 2
loss.backward()
optimizer.step()
show(loss.item(), network.parameters())
