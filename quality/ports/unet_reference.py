"""A small diffusion network in the way of DDPM: `unet_reference.py [channels_last]`."""

import math
import sys

import torch
import torch.nn.functional as F
from material import keep, move, show
from torch import nn


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.time = nn.Linear(32, outer)
        self.norm2, self.conv2 = nn.GroupNorm(4, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.shortcut = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1)

    def forward(self, x, time):
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = hidden + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(hidden)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(4, 16), nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)

    def forward(self, x):
        batch, width, rows, columns = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, 3, width, rows * columns).unbind(1)
        shares = torch.softmax(q.transpose(1, 2) @ k / math.sqrt(width), dim=-1)
        mixed = (v @ shares.transpose(1, 2)).view(batch, width, rows, columns)
        return x + self.out(mixed)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 32))
        self.down1, self.halve, self.down2 = Residual(8, 8), nn.Conv2d(8, 8, 3, stride=2, padding=1), Residual(8, 16)
        self.middle = Attention()
        self.up2, self.grow, self.up1 = Residual(16, 16), nn.Conv2d(16, 16, 3, padding=1), Residual(24, 8)
        self.norm = nn.GroupNorm(4, 8)

    def forward(self, x, steps):
        rates = torch.exp(-math.log(10000) * torch.arange(4) / 4)
        angles = steps[:, None].float() * rates[None]
        time = self.time(torch.cat([torch.sin(angles), torch.cos(angles)], dim=1))
        near = self.down1(self.first(x), time)
        far = self.middle(self.down2(self.halve(near), time))
        far = self.grow(F.interpolate(self.up2(far, time), scale_factor=2, mode="nearest"))
        x = self.up1(torch.cat([far, near], dim=1), time)
        return self.last(F.silu(self.norm(x)))


torch.manual_seed(0)
model = UNet()
move(model)
kept_share = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
images, noise, steps = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8), torch.tensor([40, 700])
keep(model.state_dict(), images=images, noise=noise, steps=steps, kept_share=kept_share)
if "channels_last" in sys.argv:
    model, images, noise = (value.to(memory_format=torch.channels_last) for value in (model, images, noise))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
share = kept_share[steps].view(-1, 1, 1, 1)
noisy = share.sqrt() * images + (1 - share).sqrt() * noise
loss = F.mse_loss(model(noisy, steps), noise)
loss.backward()
optimizer.step()
show(loss.item(), model.parameters())
