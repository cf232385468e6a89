"""Mamba of transformers, its scan step by step."""

import torch
import torch.nn.functional as F
from material import keep, move
from transformers import MambaConfig, MambaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "intermediate_size": 64}
special = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "time_step_rank": 4, "tie_word_embeddings": False}
model = MambaForCausalLM(MambaConfig(**sizes, **special))
move(model, 0.05)
tokens = torch.randint(0, 64, (2, 8))
keep(model.state_dict(), tokens=tokens)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
logits = model(tokens, use_cache=False).logits
loss = F.cross_entropy(logits[:, :-1].reshape(-1, 64), tokens[:, 1:].reshape(-1))
print(loss.item())
loss.backward()
optimizer.step()
