"""As SGLang does: a server whose option names a config.json; each forward is a step, without gradients."""

import sys

import torch
from _network import batch, network

try:
    from msprobe.pytorch import PrecisionDebugger, seed_all
except ImportError:
    PrecisionDebugger = seed_all = None


class ModelRunner:
    def __init__(self, config_path):
        if PrecisionDebugger is None:
            raise RuntimeError("install msprobe")
        seed_all(mode=True)
        self.model = network().eval()
        self.debugger = PrecisionDebugger(config_path=config_path)

    @torch.no_grad()
    def forward(self, number):
        self.debugger.start(model=self.model)
        result = self.model(batch(number))
        self.debugger.stop()
        self.debugger.step()
        return result


runner = ModelRunner(sys.argv[1])
for number in range(3):
    runner.forward(number)
