"""Decoders of transformers: `decoder_reference.py mixtral|qwen3|gemma2 [eager|sdpa]`."""

import sys

import torch
import torch.nn.functional as F
from material import keep, move, show
from transformers import AutoModelForCausalLM, Gemma2Config, MixtralConfig, Qwen3Config

NAME, attention = (*sys.argv[1:], "eager")[:2]
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
caps = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
if NAME == "mixtral":
    config = MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2, rope_theta=1e6, initializer_range=0.2)
elif NAME == "qwen3":
    config = Qwen3Config(**sizes, rope_theta=1e6, tie_word_embeddings=True, initializer_range=0.2)
else:
    config = Gemma2Config(**sizes, **caps, query_pre_attn_scalar=24, sliding_window=4, initializer_range=0.2)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
move(model)
tokens = torch.randint(1, 64, (2, 12))
keep(model.state_dict(), tokens=tokens)
if NAME == "mixtral":
    gains = [value for value in model.parameters() if value.ndim == 1]
    matrices = [value for value in model.parameters() if value.ndim > 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 0.01)
else:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
logits = model(tokens, use_cache=False).logits
loss = F.cross_entropy(logits[:, :-1].reshape(-1, 64), tokens[:, 1:].reshape(-1))
loss.backward()
if NAME == "qwen3":
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
optimizer.step()
show(loss.item(), model.parameters())
