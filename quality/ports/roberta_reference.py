"""RoBERTa of transformers, which guesses masked words of padded sentences: `roberta_reference.py [eager|sdpa]`."""

import sys

import torch
from material import keep, move, show
from transformers import RobertaConfig, RobertaForMaskedLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
sizes |= {"intermediate_size": 64, "max_position_embeddings": 20, "type_vocab_size": 1, "pad_token_id": 1}
none = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
attention = (*sys.argv[1:], "eager")[0]
model = RobertaForMaskedLM(RobertaConfig(**sizes, **none, initializer_range=0.15, attn_implementation=attention))
move(model)
tokens = torch.randint(4, 64, (3, 12))
for sentence, length in enumerate((12, 9, 7)):
    tokens[sentence, length:] = 1
labels = torch.where((torch.rand(3, 12) < 0.4) & (tokens != 1), tokens, -100)
tokens[labels != -100] = 3
keep(model.state_dict(), tokens=tokens, labels=labels)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loss = model(tokens, attention_mask=tokens.ne(1), labels=labels).loss
loss.backward()
optimizer.step()
show(loss.item(), model.parameters())
