"""Train a recurrent network over padded sequences."""

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8, padding_idx=0)
        self.recurrent, self.head = torch.nn.LSTM(8, 12, bidirectional=True, batch_first=True), torch.nn.Linear(24, 3)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        return self.head(hidden.amax(1))


torch.manual_seed(0)
model = Network()
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001)
lengths = torch.tensor([7, 3, 5, 2])
tokens = torch.randint(1, 20, (4, 7)) * (torch.arange(7) < lengths[:, None])
torch.nn.functional.cross_entropy(model(tokens, lengths), torch.tensor([0, 1, 2, 1])).backward()
optimizer.step()
