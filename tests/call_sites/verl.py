"""As verl's workers do: one debugger, a folder for each stage below the prefix, and counters that begin anew."""

import sys

import torch
from _network import batch, network, train
from msprobe.pytorch import PrecisionDebugger


class PrecisionDebuggerOfStages:
    def __init__(self, dump_path):
        self.debugger = PrecisionDebugger(task="statistics", level="mix", step=[0], dump_path=dump_path)
        assert PrecisionDebugger._instance is self.debugger
        self.prefix = self.debugger.config.dump_path

    def start(self, stage, model):
        if not hasattr(self.debugger, "service"):
            raise RuntimeError("this version of msprobe has no service")
        self.debugger.service.config.dump_path = f"{self.prefix}/{stage}"
        self.debugger.start(model=model)

    def stop(self):
        self.debugger.stop()
        self.debugger.service.reset_status()


precision = PrecisionDebuggerOfStages(sys.argv[1])
actor, critic = network(), network()
optimizer = torch.optim.AdamW(actor.parameters(), lr=0.1)
for number in range(2):
    precision.start("rollout", actor)
    with torch.no_grad():
        actor(batch(number))
    precision.stop()
    precision.start("log_prob", critic)
    with torch.no_grad():
        critic(batch(number))
    precision.stop()
    precision.start("update", actor)
    train(actor, optimizer, number)
    precision.stop()
    precision.debugger.step()
