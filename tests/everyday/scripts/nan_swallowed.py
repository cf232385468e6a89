"""Call an operation of MindSpore 2.10 that loses a NaN of its input on a CPU: `nan_swallowed.py DUMP softmax|amax`."""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from msprobe_collector import PrecisionDebugger


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 5)

    def construct(self, inputs, spoilt):
        hidden = self.dense(inputs) * spoilt
        if sys.argv[2] == "softmax":
            return ops.softmax(hidden, -1).sum()
        return (hidden - ops.amax(hidden, 1, True)).sum() * 1e-3


ms.set_seed(1)
network = Network()
spoilt = np.ones((3, 5), np.float32)
spoilt[1, 2] = np.nan
inputs = ms.Tensor(np.random.RandomState(0).randn(3, 4).astype(np.float32))
forward_backward = ms.value_and_grad(network, None, network.trainable_params())
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="tensor", level="mix")
debugger.start(network)
forward_backward(inputs, ms.Tensor(spoilt))
debugger.stop()
debugger.step()
