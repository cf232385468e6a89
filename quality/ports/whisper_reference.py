"""The encoder of Whisper of transformers, as a classifier of sounds."""

import torch
import torch.nn.functional as F
from material import keep, move
from transformers import WhisperConfig, WhisperForAudioClassification

torch.manual_seed(0)
sizes = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64, "num_mel_bins": 8}
more = {"vocab_size": 64, "max_source_positions": 12, "num_labels": 5, "classifier_proj_size": 16, "init_std": 0.15}
special = {f"{name}_token_id": number for number, name in enumerate(("pad", "bos", "eos", "decoder_start"))}
model = WhisperForAudioClassification(
    WhisperConfig(**sizes, **more, **special, decoder_layers=1, attn_implementation="eager")
)
positions = model.encoder.embed_positions.weight.clone()
move(model, 0.05)
model.encoder.embed_positions.weight.data.copy_(positions)
sound, labels = torch.randn(2, 8, 24), torch.tensor([3, 1])
keep(model.state_dict(), sound=sound, labels=labels)
optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], 0.1)
loss = F.cross_entropy(model(sound).logits, labels)
print(loss.item())
loss.backward()
optimizer.step()
