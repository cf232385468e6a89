"""Small networks with PyTorch that the recipes train, each different from the others in what it calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal attention of `heads` heads, written out."""

    def __init__(self, width: int, heads: int, scale: float | None = None) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale or (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        scores = torch.matmul(query, key.transpose(-2, -1)) * self.scale
        future = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        weights = functional.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        return self.out(torch.matmul(weights, value).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward network, both behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int, eps: float = 1e-5, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.add(x, self.attention(self.norm1(x)))
        return torch.add(x, self.dropout(self.down(functional.gelu(self.up(self.norm2(x))))))


class GPT(nn.Module):
    """A decoder of letters."""

    def __init__(self, width: int = 48, heads: int = 3, layers: int = 3, letters: int = 23, length: int = 12) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.letters(letters) + self.places(torch.arange(letters.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Cross entropy of each next letter."""
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def text_batches(steps: int, seed: int = 0, size: int = 4, length: int = 13, letters: int = 23) -> list[Tensor]:
    """Batches of a text in which each letter follows from the one before, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(steps):
        start = torch.randint(letters, (size, 1), generator=generator)
        noise = torch.randint(3, (size, length), generator=generator)
        made.append((start + 5 * torch.arange(length) + noise) % letters)
    return made


class CNN(nn.Module):
    """Three convolutions with batch norm, pooled."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(12, 16, 3, padding=1, groups=4)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for channels in (8, 12, 16))
        self.head = nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for convolution, norm in zip((self.stem, self.middle, self.deep), self.norms):
            x = functional.relu(norm(convolution(x)))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class ResidualMLP(nn.Module):
    """Layers with a residual; `rewired` is the number of a layer that adds its normed input instead of its input."""

    def __init__(self, width: int = 40, layers: int = 4, rewired: int | None = None) -> None:
        super().__init__()
        self.rewired = rewired
        self.entry = nn.Linear(10, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.exit = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for number, (norm, layer) in enumerate(zip(self.norms, self.layers)):
            normed = norm(x)
            x = torch.add(normed if number == self.rewired else x, torch.tanh(layer(normed)))
        return self.exit(x)


class CharLSTM(nn.Module):
    """A recurrent network of letters, unrolled over an LSTM cell."""

    def __init__(self, width: int = 20, letters: int = 23) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.cell = nn.LSTMCell(width, width)
        self.head = nn.Linear(width, letters)

    def forward(self, letters: Tensor) -> Tensor:
        embedded = self.embed(letters)
        hidden = memory = embedded.new_zeros(letters.shape[0], embedded.shape[-1])
        outputs = []
        for place in range(letters.shape[1]):
            hidden, memory = self.cell(embedded[:, place], (hidden, memory))
            outputs.append(hidden)
        return self.head(torch.stack(outputs, 1))


class MoE(nn.Module):
    """Two layers of four experts each, of which a router chooses one per token."""

    def __init__(self, width: int = 32, experts: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.entry = nn.Linear(8, width)
        self.routers = nn.ModuleList(nn.Linear(width, experts, bias=False) for _ in range(layers))
        self.ups = nn.ModuleList(nn.ModuleList(nn.Linear(width, 64) for _ in range(experts)) for _ in range(layers))
        self.downs = nn.ModuleList(nn.ModuleList(nn.Linear(64, width) for _ in range(experts)) for _ in range(layers))
        self.exit = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for router, ups, downs in zip(self.routers, self.ups, self.downs):
            weight, chosen = functional.softmax(router(x), dim=-1).max(-1)
            mixed = torch.zeros_like(x)
            for number, (up, down) in enumerate(zip(ups, downs)):
                tokens = (chosen == number).nonzero().flatten()
                mixed = mixed.index_add(0, tokens, down(functional.silu(up(x[tokens]))))
            x = x + mixed * weight.unsqueeze(-1)
        return self.exit(x)


class Autoencoder(nn.Module):
    """From points to six numbers and back, without a norm anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.code = nn.Linear(16, 24), nn.Linear(24, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.code(functional.relu(self.encoder(x))))


class Generator(nn.Module):
    """From noise to points."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2))
        self.out = nn.Linear(32, 8)

    def forward(self, noise: Tensor) -> Tensor:
        return torch.tanh(self.out(self.body(noise)))


class Discriminator(nn.Module):
    """Whether points are real."""

    def __init__(self, slope: float = 0.2) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.slope = slope

    def forward(self, points: Tensor) -> Tensor:
        hidden = functional.leaky_relu(self.first(points), 0.2)
        return self.out(functional.leaky_relu(self.second(hidden), self.slope))
