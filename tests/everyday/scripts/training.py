"""Train a small language model: what the pairs of runs differ in are options."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--optimizer", choices=["AdamW", "SGD"], default="AdamW")
parser.add_argument("--vocabulary", type=int, default=32)
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--dropout", type=float, default=0.0)
options = parser.parse_args()


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        self.dropout = torch.nn.Dropout(options.dropout)

    def forward(self, hidden):
        return hidden + self.dropout(self.down(torch.tanh(self.up(hidden))))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(options.vocabulary, options.width)
        self.blocks = torch.nn.ModuleList(Block(options.width) for _ in range(2))
        self.head = torch.nn.Linear(options.width, options.vocabulary)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        return self.head(self.blocks[1](self.blocks[0](hidden)))


torch.manual_seed(options.seed)
model = Model()
optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=options.lr)
tokens = torch.arange(options.batch * 6).reshape(options.batch, 6) % options.vocabulary
logits = model(tokens)
torch.nn.functional.cross_entropy(logits.flatten(0, 1), (tokens.flatten() + 1) % options.vocabulary).backward()
optimizer.step()
