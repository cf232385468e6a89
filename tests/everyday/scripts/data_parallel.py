"""Train on two ranks, each with half of the batch, or on one: `data_parallel.py DUMP 2|1 [wrong]`.

In the wrong run the kernel of tanh is 1 % too large.
"""

import os
import sys

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe_collector.pytorch import PrecisionDebugger

DUMP, RANKS, IS_WRONG = sys.argv[1], int(sys.argv[2]), "wrong" in sys.argv


class Kernels(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        output = function(*arguments, **(keywords or {}))
        return output * 1.01 if IS_WRONG and function.overloadpacket is torch.ops.aten.tanh else output


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    if RANKS > 1:
        store = distributed.FileStore(f"{DUMP}.store", RANKS)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, goals = torch.randn(8, 6), torch.randn(8, 5)
    debugger = PrecisionDebugger(dump_path=DUMP, task="tensor", level="mix")
    debugger.start(model)
    part = slice(rank * 8 // RANKS, (rank + 1) * 8 // RANKS)
    with Kernels():
        outputs = model(inputs[part])
    (outputs - goals[part]).square().mean().backward()
    for parameter in model.parameters():
        if RANKS > 1:
            distributed.all_reduce(parameter.grad)
            parameter.grad /= RANKS
    optimizer.step()
    debugger.stop()
    debugger.step()


other = os.fork() if RANKS > 1 else 0
train(int(other == 0 and RANKS > 1))
if other:
    os.waitpid(other, 0)
