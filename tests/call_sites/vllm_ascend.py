"""As vllm-ascend does: reads the level, and says of its dummy runs that they are no steps."""

import sys

import torch
from _network import batch, network


class NPUModelRunner:
    def __init__(self, config_path):
        from msprobe.pytorch import PrecisionDebugger

        self.debugger = PrecisionDebugger(config_path)
        if self.debugger.config.level != "L0":
            print("not under graphs: level", self.debugger.config.level)
        self.model = network().eval()

    def _start(self):
        if self.debugger is not None:
            self.debugger.start(model=self.model, rank_id=0)

    @torch.no_grad()
    def execute_model(self, number):
        self._start()
        result = self.model(batch(number))
        self.debugger.stop()
        self.debugger.step()
        return result

    @torch.no_grad()
    def dummy_run(self):
        self._start()
        self.model(torch.zeros(4, 8))
        self.debugger.stop()
        self.debugger.step(dump=False)


runner = NPUModelRunner(sys.argv[1])
runner.dummy_run()
runner.execute_model(0)
runner.dummy_run()
runner.execute_model(1)
