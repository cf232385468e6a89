"""A convolutional network with layer norm, in PyTorch."""

import torch
import torch.nn.functional as F
from material import keep, move
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.spread = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.norm, self.mixed = nn.BatchNorm2d(16), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, pixels):
        x = F.relu(self.norm(self.stem(pixels)))
        x = self.spread(x).flatten(2).transpose(1, 2)
        x = x + self.down(F.gelu(self.up(self.mixed(x))))
        return self.head(x.mean(1))


torch.manual_seed(0)
model = Network()
move(model)
pixels, labels = torch.randn(3, 3, 16, 16), torch.tensor([3, 1, 0])
keep(model.state_dict(), pixels=pixels, labels=labels)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
loss = F.cross_entropy(model(pixels), labels)
print(loss.item())
loss.backward()
optimizer.step()
