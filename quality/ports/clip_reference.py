"""CLIP of transformers, two towers and the contrastive loss: `clip_reference.py [eager|sdpa] [adamw]`."""

import sys

import torch
from material import keep, move, show
from transformers import CLIPConfig, CLIPModel

text = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
text |= {"num_hidden_layers": 2, "max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": 60}
image = {"hidden_size": 24, "intermediate_size": 48, "num_attention_heads": 3, "num_hidden_layers": 2}
image |= {"image_size": 12, "patch_size": 4}
for tower in (text, image):
    tower["attn_implementation"] = "sdpa" if "sdpa" in sys.argv else "eager"
torch.manual_seed(0)
model = CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=16))
move(model)
tokens = torch.randint(2, 60, (3, 10))
for sentence, end in enumerate((9, 6, 4)):
    tokens[sentence, end:] = 60
pixels = torch.randn(3, 3, 12, 12)
keep(model.state_dict(), tokens=tokens, pixels=pixels)
if "adamw" in sys.argv:
    optimizer = torch.optim.AdamW(model.parameters(), 0.001)
else:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
loss = model(tokens, pixels, return_loss=True).loss
loss.backward()
optimizer.step()
show(loss.item(), model.parameters())
