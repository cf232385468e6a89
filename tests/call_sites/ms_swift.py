"""As the manual of ms-swift says: the debugger is constructed anew in every step, with the model."""

import sys

import torch
from _network import network, train


class Trainer:
    def __init__(self, dump_path):
        self.dump_path = dump_path
        self.model = network()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def train_step(self, number):
        from msprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(dump_path=self.dump_path, level="mix", model=self.model)
        debugger.start()
        try:
            return train(self.model, self.optimizer, number)
        finally:
            debugger.stop()
            debugger.step()


trainer = Trainer(sys.argv[1])
for number in range(2):
    trainer.train_step(number)
