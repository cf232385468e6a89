"""ViT of transformers as a classifier of images."""

import torch
import torch.nn.functional as F
from material import keep, move
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
images = {"image_size": 16, "patch_size": 4, "num_channels": 3, "num_labels": 5, "initializer_range": 0.15}
model = ViTForImageClassification(ViTConfig(**sizes, **images, attn_implementation="sdpa"))
move(model, 0.05)
pixels, labels = torch.randn(2, 3, 16, 16), torch.tensor([3, 1])
keep(model.state_dict(), pixels=pixels, labels=labels)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loss = F.cross_entropy(model(pixels).logits, labels)
print(loss.item())
loss.backward()
optimizer.step()
