"""Train two blocks of GPT-2 with its default dropout: inside of the attention, and behind it."""

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attend, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, hidden):
        parts = self.attend(self.norm(hidden)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(*parts, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        return hidden + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(32, 16), Block(), Block(), torch.nn.Linear(16, 32))
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(32, (2, 10))
cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
optimizer.step()
