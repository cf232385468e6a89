"""T5 of transformers, encoder and decoder, trained by its labels."""

import torch
import torch.nn.functional as F
from material import keep
from transformers import T5Config, T5ForConditionalGeneration

torch.manual_seed(0)
sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
special = {"pad_token_id": 0, "decoder_start_token_id": 0, "dropout_rate": 0.0}
buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
model = T5ForConditionalGeneration(T5Config(**sizes, **special, **buckets, attn_implementation="eager"))
question, answer = torch.randint(1, 64, (2, 14)), torch.randint(1, 64, (2, 10))
keep(model.state_dict(), question=question, answer=answer)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
logits = model(question, decoder_input_ids=model._shift_right(answer), use_cache=False).logits
loss = F.cross_entropy(logits.reshape(-1, 64), answer.reshape(-1))
print(loss.item())
loss.backward()
optimizer.step()
