"""As a harness of torchtitan does: the long names, a list of parts, a folder of the process, and a step that raises."""

import os
import sys

import torch
from _network import network, train
from msprobe.pytorch.common.utils import seed_all
from msprobe.pytorch.debugger.precision_debugger import PrecisionDebugger

seed_all(seed=1234, mode=True, rm_dropout=False)
debugger = PrecisionDebugger(task="statistics", level="L1", dump_path=sys.argv[1])
folder = os.path.join(sys.argv[1], f"process_{os.environ['NAME_OF_PROCESS']}")
debugger.config.dump_path = folder
debugger.service.config.dump_path = folder
model_parts = [network()]
optimizer = torch.optim.AdamW(model_parts[0].parameters())
for number in range(2):
    debugger.start(model=model_parts)
    try:
        train(model_parts[0], optimizer, number)
        if number == 1:
            raise RuntimeError("the trainer stops here")
    except RuntimeError as error:
        print("went on after:", error)
    finally:
        debugger.stop()
        debugger.step()
