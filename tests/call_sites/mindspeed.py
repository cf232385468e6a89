"""As MindSpeed's feature does: wraps train_step of a trainer, whose model is a list of parts, and the end of a step."""

import functools
import importlib.util
import sys

import torch
from _network import network, train

if importlib.util.find_spec("msprobe") is None:
    raise ModuleNotFoundError("msprobe is missing: pip install mindstudio-probe")

from msprobe.pytorch import PrecisionDebugger


class Training:
    def train_step(self, number, model, optimizer):
        return train(model[0], optimizer, number)

    def end_of_step(self):
        pass


def with_dump(train_step):
    @functools.wraps(train_step)
    def wrapper(self, number, model, optimizer):
        PrecisionDebugger.start(model=model)
        return train_step(self, number, model, optimizer)

    return wrapper


def end_with_dump(end_of_step):
    @functools.wraps(end_of_step)
    def wrapper(self):
        end_of_step(self)
        PrecisionDebugger.stop()
        PrecisionDebugger.step()

    return wrapper


PrecisionDebugger(config_path=sys.argv[1])
Training.train_step = with_dump(Training.train_step)
Training.end_of_step = end_with_dump(Training.end_of_step)
training, model = Training(), [network()]
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
for number in range(3):
    training.train_step(number, model, optimizer)
    training.end_of_step()
