"""Llama of transformers with grouped queries: `llama_ways.py eager|sdpa [checkpointed]`."""

import sys

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, attn_implementation=sys.argv[1]))
if "checkpointed" in sys.argv:
    model.gradient_checkpointing_enable()
tokens = torch.randint(0, 64, (2, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
logits = model(tokens, use_cache=False).logits
loss = F.cross_entropy(logits[:, :-1].reshape(-1, 64), tokens[:, 1:].reshape(-1))
print(loss.item())
loss.backward()
optimizer.step()
