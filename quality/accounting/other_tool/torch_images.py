"""PyTorch networks of the pairs: those over images and points. `plan` holds what a cause changes."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResNet(nn.Module):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(5)])
        self.head = nn.Linear(8, 10)
        self.plan = plan
        if "eps" in plan:
            self.norms[plan["eps"]].eps = 1e-3
        if "momentum" in plan:
            self.norms[plan["momentum"]].momentum = 0.3
        if "frozen" in plan:
            self.norms[plan["frozen"]].eval()

    def forward(self, x: Tensor) -> Tensor:
        x = stem = F.max_pool2d(F.relu(self.norms[0](self.stem(x))), 2)
        for number in range(2):
            one, two = self.convs[2 * number : 2 * number + 2]
            y = F.relu(self.norms[2 * number + 1](one(x)), inplace=self.plan.get("inplace", True))
            y = self.norms[2 * number + 2](two(y))
            skip = stem if self.plan.get("skip_stem") == number else x
            x = F.relu(y if self.plan.get("no_skip") == number else y + skip)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self(x), targets, label_smoothing=0.1 if self.plan.get("smoothing") else 0.0)


class Vit(nn.Module):
    """Patches by a convolution, a token of the class put in front, attention in one call."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 24, 4, 4)
        self.cls, self.places = nn.Parameter(torch.zeros(1, 1, 24)), nn.Parameter(torch.zeros(1, 10, 24))
        self.norms = nn.ModuleList([nn.LayerNorm(24) for _ in range(5)])
        self.qkv = nn.ModuleList([nn.Linear(24, 72) for _ in range(2)])
        self.out = nn.ModuleList([nn.Linear(24, 24) for _ in range(2)])
        self.mlp = nn.ModuleList([nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24)) for _ in range(2)])
        if "tanh" in plan:
            self.mlp[plan["tanh"]][1].approximate = "tanh"
        self.head, self.plan = nn.Linear(24, 7), plan

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        if self.plan.get("columns"):
            x = x.reshape(-1, 3, 3, 24).transpose(1, 2).reshape(-1, 9, 24)
        cls = self.cls.expand(x.shape[0], -1, -1)
        x = torch.cat((x, cls) if self.plan.get("class_last") else (cls, x), 1) + self.places
        for number in range(2):
            x = x + self.attend(self.norms[2 * number](x), number)
            x = x + self.mlp[number](self.norms[2 * number + 1](x))
        return self.head(self.norms[4](x)[:, -1 if self.plan.get("last_token") else 0])

    def attend(self, x: Tensor, number: int) -> Tensor:
        batch, time, _ = x.shape
        q, k, v = self.qkv[number](x).reshape(batch, time, 3, 4, 6).permute(2, 0, 3, 1, 4).unbind(0)
        if self.plan.get("swap_kv") == number:
            k, v = v, k
        scale = 0.5 if self.plan.get("scale") == number else None
        y = F.scaled_dot_product_attention(q, k, v, scale=scale)
        return self.out[number](y.transpose(1, 2).flatten(2))

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self(x), targets % 7)


class Mixer(nn.Module):
    """Perceptrons over tokens and over channels in turns."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.entry = nn.Linear(12, 20)
        self.tokens = nn.ModuleList([nn.Linear(9, 9) for _ in range(3)])
        self.channels = nn.ModuleList([nn.Linear(20, 20) for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(20) for _ in range(6)])
        self.head, self.plan = nn.Linear(20, 6), plan

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for number in range(3):
            y = self.norms[2 * number](x).transpose(1, 2)
            y = F.hardswish(self.tokens[number](y)).transpose(1, 2)
            x = x - y if self.plan.get("minus") == number else x + y
            y = self.norms[2 * number + 1](x)
            y = self.channels[number](y)
            if self.plan.get("silu") and self.plan.get("elu_in") != number:
                y = F.silu(y)
            else:
                y = F.elu(y, 0.7 if self.plan.get("alpha") == number else 1.0)
            if self.plan.get("half") == number:
                y = y.half().float()
            x = x + y
        x = x.sum(1) / 9 if self.plan.get("sum") else x.mean(1)
        return self.head(x)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.kl_div(F.log_softmax(self(x), -1), F.one_hot(targets % 6, 6).float(), reduction="batchmean")


class UNet(nn.Module):
    """Two levels down and up; what was left on the way down is joined on the way up."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.down0, self.down1 = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2, padding=1)
        self.middle, self.rise = nn.Conv2d(6, 6, 3, padding=1), nn.ConvTranspose2d(6, 6, 2, 2)
        self.up1, self.up0 = nn.Conv2d(12, 6, 3, padding=1), nn.Conv2d(12, 6, 3, padding=1)
        self.last, self.plan = nn.Conv2d(6, 2, 1), plan

    def forward(self, x: Tensor) -> Tensor:
        one = F.leaky_relu(self.down0(x), 0.2 if self.plan.get("slope") else 0.1)
        two = F.leaky_relu(self.down1(one), 0.1)
        y = F.leaky_relu(self.middle(F.avg_pool2d(two, 2)), 0.1)
        mode = "bilinear" if self.plan.get("bilinear") else "nearest"
        y = F.interpolate(y, scale_factor=2, mode=mode)
        y = F.leaky_relu(self.up1(torch.cat((y, two) if self.plan.get("order") else (two, y), 1)), 0.1)
        y = self.rise(y)
        skip = self.down0(x) if self.plan.get("before_relu") else one
        y = torch.cat((skip.flip(0) if self.plan.get("flipped") else skip, y), 1)
        return self.last(F.leaky_relu(self.up0(y), 0.1))

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return (
            F.mse_loss(self(x), x * 0.5) + F.l1_loss(self(x), x * 0.5)
            if self.plan.get("twice")
            else F.mse_loss(self(x), x * 0.5)
        )


class Diffusion(nn.Module):
    """A block with group norm, told the time by sines."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.entry, self.time = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 16)
        self.norms = nn.ModuleList([nn.GroupNorm(2 if plan.get("groups") == n else 4, 8) for n in range(3)])
        self.convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)])
        self.exit, self.plan = nn.Conv2d(8, 3, 3, padding=1), plan

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(4) * (-math.log(1000.0 if self.plan.get("slow") else 10000.0) / 4))
        angles = times[:, None].float() * rates
        emb = torch.cat((angles.cos(), angles.sin()) if self.plan.get("cos_first") else (angles.sin(), angles.cos()), 1)
        scale, shift = F.silu(self.time(emb)).chunk(2, 1)
        if self.plan.get("shift_is_scale"):
            scale, shift = shift, scale
        x = self.entry(x)
        y = self.convs[0](F.silu(self.norms[0](x)))
        y = self.norms[1](y) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
        x = x + self.convs[1](F.silu(y))
        return self.exit(F.silu(self.norms[2](x)))

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        noise = torch.flip(x, (0,))
        level = torch.cos(targets.float() * 0.1)[:, None, None, None]
        noisy = level * x + torch.sqrt(1 - level**2) * noise
        return F.mse_loss(self(noisy, targets), noise)


class Gan(nn.Module):
    """A generator and a judge with two losses; the judge's loss has the judge twice."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 12))
        self.judge = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.plan = plan

    def losses(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(of the judge, of the generator)."""
        fake = self.make(noise)
        real = 0.9 if self.plan.get("soft") else 1.0
        shown = fake if self.plan.get("attached") else fake.detach()
        one, two = self.judge(x), self.judge(shown)
        judged = F.binary_cross_entropy_with_logits(one, torch.full_like(one, real))
        judged = judged + F.binary_cross_entropy_with_logits(two, torch.zeros_like(two))
        made = self.judge(torch.tanh(fake) if self.plan.get("tanh") else fake)
        return judged, F.softplus(-made).mean()
