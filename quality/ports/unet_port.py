"""The diffusion network with channels last: Linear for 1x1 convolutions, norms by hand, one call for attention."""

import sys

import torch
import torch.nn.functional as F
from material import kept, show
from torch import nn

BUG = sys.argv[1]


class Groups(nn.Module):
    """Normalise (batch, rows, columns, channels) over groups of channels."""

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        parts = x.unflatten(-1, (8 if BUG == "groups" else 4, -1))  # bug: groups
        variance, mean = torch.var_mean(parts, (1, 2, 4), correction=0, keepdim=True)  # bug: groups
        return ((parts - mean) / (variance + 1e-5).sqrt()).flatten(-2) * self.weight + self.bias


class Conv(nn.Conv2d):
    def forward(self, x):
        x = x.movedim(-1, 1)
        if BUG == "pad" and self.stride == (2, 2):
            return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, 2).movedim(1, -1)  # bug: pad
        return super().forward(x).movedim(1, -1)


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int):
        super().__init__()
        self.norm1, self.norm2 = Groups(inner), Groups(outer)
        self.conv1, self.conv2 = Conv(inner, outer, 3, padding=1), Conv(outer, outer, 3, padding=1)
        self.time, self.shortcut = nn.Linear(32, outer), nn.Linear(inner, outer) if inner != outer else None

    def forward(self, x, time):
        if BUG != "act":
            time = time * time.sigmoid()
        shift = self.time(time)[:, None, None]  # bug: act
        hidden = F.silu(self.norm2(shift + self.conv1(F.silu(self.norm1(x)))))
        return self.conv2(hidden) + (x if self.shortcut is None else self.shortcut(x))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q, self.kv, self.out = Groups(16), nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x):
        flat = self.norm(x).flatten(1, 2)
        k, v = self.kv(flat).chunk(2, -1)
        mixed = F.scaled_dot_product_attention(self.q(flat), k, v)
        return self.out(mixed).view_as(x) + x


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Conv(3, 8, 3, padding=1), Conv(8, 3, 3, padding=1)
        self.time1, self.time2 = nn.Linear(8, 32), nn.Linear(32, 32)
        self.down1, self.halve, self.down2 = Residual(8, 8), Conv(8, 8, 3, stride=2, padding=1), Residual(8, 16)
        self.middle, self.norm = Attention(), Groups(8)
        self.up2, self.grow, self.up1 = Residual(16, 16), Conv(16, 16, 3, padding=1), Residual(24, 8)

    def clock(self, steps):
        last = 3 if BUG == "rate" else 4
        rates = torch.tensor([10000.0 ** (-place / last) for place in range(4)])
        angles = torch.outer(steps.float(), rates)  # bug: rate
        waves = (angles.cos(), angles.sin()) if BUG == "flip" else (angles.sin(), angles.cos())
        return self.time2(F.silu(self.time1(torch.cat(waves, -1))))  # bug: flip

    def forward(self, x, steps):
        time = self.clock(steps)
        near = self.down1(self.first(x.permute(0, 2, 3, 1)), time)
        far = self.up2(self.middle(self.down2(self.halve(near), time)), time)
        if BUG == "grow":
            far = F.interpolate(far.movedim(-1, 1), scale_factor=2, mode="bilinear").movedim(1, -1)  # bug: grow
        else:
            far = far.repeat_interleave(2, 1).repeat_interleave(2, 2)
        both = (near, self.grow(far)) if BUG == "skip" else (self.grow(far), near)
        x = self.up1(torch.cat(both, -1), time)  # bug: skip
        return self.last(F.silu(self.norm(x))).permute(0, 3, 1, 2)


weights, batch = kept()
state = {}
for name, value in weights.items():
    value = value.flatten(1) if value.ndim == 4 and value.shape[2] == 1 else value
    if name.startswith("middle.qkv"):
        kind = name.rpartition(".")[2]
        state[f"middle.q.{kind}"], state[f"middle.kv.{kind}"] = value.split([16, 32])
    else:
        state[name.replace("time.0.", "time1.").replace("time.2.", "time2.")] = value
network = Network()
network.load_state_dict(state)
optimizer = torch.optim.AdamW(network.parameters(), 0.01)
share = batch["kept_share"].index_select(0, batch["steps"])[:, None, None, None]
signal, rest = (share, 1 - share) if BUG == "schedule" else (share**0.5, (1 - share) ** 0.5)
noisy = torch.addcmul(signal * batch["images"], rest, batch["noise"])  # bug: schedule
with torch.autocast("cpu", torch.bfloat16, enabled=BUG == "autocast"):
    predicted = network(noisy, batch["steps"])
loss = (predicted - batch["noise"]).square().mean()
loss.backward()
optimizer.step()
show(loss.item(), network.parameters())
