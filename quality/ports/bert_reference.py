"""BERT of transformers as a classifier, with a padded sentence and two segments."""

import torch
import torch.nn.functional as F
from material import keep, move
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
none = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
more = {"intermediate_size": 64, "max_position_embeddings": 32, "num_labels": 3, "initializer_range": 0.15}
model = BertForSequenceClassification(BertConfig(**sizes, **none, **more, attn_implementation="sdpa"))
move(model)
tokens = torch.randint(1, 64, (3, 12))
present = torch.ones_like(tokens)
present[1, 8:] = 0
present[2, 10:] = 0
segments = torch.zeros_like(tokens)
segments[:, 5:] = 1
labels = torch.tensor([0, 2, 1])
keep(model.state_dict(), tokens=tokens * present, present=present, segments=segments, labels=labels)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
logits = model(tokens * present, attention_mask=present, token_type_ids=segments).logits
loss = F.cross_entropy(logits, labels)
print(loss.item())
loss.backward()
optimizer.step()
