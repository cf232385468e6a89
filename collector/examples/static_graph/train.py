"""A small network compiled into a graph (GRAPH_MODE), on CPU or Ascend.

python train.py                collects the Cells of step 1 into ./graph_dump (config.json)
python train.py --pynative     the same training in PyNative mode, into ./pynative_dump
"""

import argparse
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from msprobe_collector import PrecisionDebugger, seed_all

HERE = Path(__file__).parent
FEATURES, WIDTH, BATCH, STEPS = 6, 16, 8, 3


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((WIDTH,))
        self.up = nn.Dense(WIDTH, 2 * WIDTH)
        self.act = nn.ReLU()
        self.down = nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, x: Tensor, scale: float) -> Tensor:
        return x + scale * self.down(self.act(self.up(self.norm(x))))


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Dense(FEATURES, WIDTH)
        self.block = Block()
        self.head = nn.Dense(WIDTH, 1)

    def construct(self, features: Tensor) -> Tensor:
        x = self.embed(features)
        for _ in range(2):  # one block, called twice: Cell.block.Block.forward.0 and .1
            x = self.block(x, 0.5)
        return self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pynative", action="store_true")
    is_pynative = parser.parse_args().pynative

    mindspore.set_context(mode=mindspore.PYNATIVE_MODE if is_pynative else mindspore.GRAPH_MODE)
    seed_all(1234)
    debugger = PrecisionDebugger(HERE / "config.json", dump_path="./pynative_dump" if is_pynative else None)

    network = Network()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-2)

    def loss_of(features: Tensor, targets: Tensor) -> Tensor:
        return ops.mse_loss(network(features), targets)

    forward_backward = mindspore.value_and_grad(loss_of, None, optimizer.parameters)
    random = np.random.default_rng(0)
    for number in range(STEPS):
        features = random.normal(size=(BATCH, FEATURES)).astype(np.float32)
        debugger.start(network)  # before the graph is compiled, also in steps that are not collected
        loss, gradients = forward_backward(Tensor(features), Tensor(features.sum(1, keepdims=True)))
        debugger.stop()
        optimizer(gradients)
        debugger.step()
        print(f"step {number}: loss {float(loss):.6f}")


if __name__ == "__main__":
    main()
