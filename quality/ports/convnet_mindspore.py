"""The convolutional network in MindSpore: `convnet_mindspore.py BUG [DUMP TASK]`."""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

BUG = sys.argv[1]


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        sides = {"pad_mode": "same"} if BUG == "padding" else {"pad_mode": "pad", "padding": 1}
        self.first = nn.Conv2d(3, 16, 3, stride=2, has_bias=True, **sides)
        self.second = nn.Conv2d(16, 32, 3, pad_mode="same", has_bias=BUG != "bias")
        self.batch_norm = nn.BatchNorm2d(16, eps=1e-5)
        self.layer_norm = nn.LayerNorm((32,), epsilon=1e-3 if BUG == "eps" else 1e-5)
        self.dense1, self.dense2, self.classes = nn.Dense(32, 64), nn.Dense(64, 32), nn.Dense(32, 5)

    def construct(self, pixels):
        x = self.first(pixels)  # bug: padding
        x = ops.relu(self.batch_norm(x))
        x = self.second(x)  # bug: bias
        x = x.reshape(x.shape[0], 32, -1).swapaxes(1, 2)
        normed = self.layer_norm(x)  # bug: eps
        wide = ops.gelu(self.dense1(normed), approximate="tanh" if BUG == "act" else "none")  # bug: act
        x = (normed if BUG == "residual" else x) + self.dense2(wide)  # bug: residual
        return self.classes(x.mean(axis=1))


def loss_of(pixels, labels):
    reduction = "sum" if BUG == "reduction" else "mean"
    return ops.cross_entropy(network(pixels), labels, reduction=reduction)  # bug: reduction


ms.set_seed(0)
weights, batch = np.load("weights.npz"), np.load("batch.npz")
names = {"stem": "first", "spread": "second", "up": "dense1", "down": "dense2", "head": "classes"}
state = {f"{ours}.{kind}": weights[f"{theirs}.{kind}"] for theirs, ours in names.items() for kind in ("weight", "bias")}
state |= {f"batch_norm.{ours}": weights[f"norm.{theirs}"] for ours, theirs in (("gamma", "weight"), ("beta", "bias"))}
state |= {f"layer_norm.{ours}": weights[f"mixed.{theirs}"] for ours, theirs in (("gamma", "weight"), ("beta", "bias"))}
network = Network()
network.set_train()
ms.load_param_into_net(network, {name: ms.Parameter(value) for name, value in state.items()})
pixels, labels = ms.Tensor(batch["pixels"]), ms.Tensor(batch["labels"].astype(np.int32))
optimizer = nn.SGD(network.trainable_params(), learning_rate=0.05)
forward_backward = ms.value_and_grad(loss_of, None, network.trainable_params())
if len(sys.argv) > 2:
    from msprobe_collector import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=sys.argv[2], task=sys.argv[3], level="mix")
    debugger.start(network)
    loss, gradients = forward_backward(pixels, labels)
    debugger.stop()
    optimizer(gradients)
    debugger.step()
else:
    loss, gradients = forward_backward(pixels, labels)
print(float(loss))
