"""GPT-2 of transformers, with attention in single steps."""

import torch
import torch.nn.functional as F
from material import keep
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
sizes = {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
model = GPT2LMHeadModel(GPT2Config(**sizes, **none, initializer_range=0.2, attn_implementation="eager"))
tokens = torch.randint(0, 64, (2, 16))
keep(model.state_dict(), tokens=tokens)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
logits = model(tokens, use_cache=False).logits
loss = F.cross_entropy(logits[:, :-1].reshape(-1, 64), tokens[:, 1:].reshape(-1))
print(loss.item())
loss.backward()
optimizer.step()
