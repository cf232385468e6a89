"""ResNet of transformers with bottlenecks, in training."""

import torch
import torch.nn.functional as F
from material import keep
from transformers import ResNetConfig, ResNetForImageClassification

torch.manual_seed(0)
sizes = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2], "layer_type": "bottleneck", "num_labels": 5}
model = ResNetForImageClassification(ResNetConfig(**sizes))
model.train()
pixels, labels = torch.randn(3, 3, 32, 32), torch.tensor([3, 1, 0])
keep(model.state_dict(), pixels=pixels, labels=labels)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
loss = F.cross_entropy(model(pixels).logits, labels)
print(loss.item())
loss.backward()
optimizer.step()
