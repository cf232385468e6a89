"""Train a MindSpore network with the five lines of the page on collecting: `five_lines.py DUMP [raise|rate]`.

`set_train()` is not called, and changes nothing in this network. `rate`: another learning rate.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn

from msprobe_collector import PrecisionDebugger


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Dense(6, 8), nn.Dense(8, 3)

    def construct(self, inputs):
        return self.down(ms.ops.tanh(self.up(inputs)))


ms.set_seed(1)
network = Network()
optimizer = nn.SGD(network.trainable_params(), learning_rate=0.2 if "rate" in sys.argv else 0.1)
forward_backward = ms.value_and_grad(
    lambda inputs, goals: nn.MSELoss()(network(inputs), goals), None, network.trainable_params()
)
random = np.random.RandomState(0)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="tensor", level="mix")
for _ in range(1):
    inputs = ms.Tensor(random.randn(4, 6).astype(np.float32))
    goals = ms.Tensor(random.randn(4, 3).astype(np.float32))
    debugger.start(network)
    loss, gradients = forward_backward(inputs, goals)
    if "raise" in sys.argv:
        float(loss) / 0
    debugger.stop()
    optimizer(gradients)
    debugger.step()
