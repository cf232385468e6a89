"""A small GPT on CPU or Ascend, PyNative mode, in a training loop of its own.

python train.py                                  collects step 0 into ./gpt_dump (config.json)
python train.py --config gradients.json          watches the gradients of all steps, in ./gpt_gradients
python train.py --weights weights.npz            starts from these weights, which it writes where there are none

The network in ../gpt_torch is the same: from the same weights, both compute the same step.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import initializer

from msprobe_collector import PrecisionDebugger, seed_all

HERE = Path(__file__).parent
TEXT = "the quick brown fox jumps over the lazy dog. " * 20
LETTERS = sorted(set(TEXT))
WIDTH, HEADS, LAYERS, SEQUENCE, BATCH = 32, 4, 2, 16, 4


class Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = mint.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = mint.nn.Linear(WIDTH, WIDTH)
        self.hidden_future = Tensor(np.triu(np.ones((SEQUENCE, SEQUENCE), bool), k=1))

    def construct(self, x: Tensor) -> Tensor:
        heads = (BATCH, SEQUENCE, HEADS, WIDTH // HEADS)
        query, key, value = (
            mint.transpose(mint.reshape(part, heads), 1, 2) for part in mint.chunk(self.query_key_value(x), 3, dim=-1)
        )
        scores = mint.matmul(query, mint.transpose(key, -2, -1)) / (WIDTH // HEADS) ** 0.5
        weights = mint.nn.functional.softmax(scores.masked_fill(self.hidden_future, -1e4), dim=-1)
        mixed = mint.transpose(mint.matmul(weights, value), 1, 2)
        return self.out(mint.reshape(mixed, (BATCH, SEQUENCE, WIDTH)))


class RMSNorm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(mint.ones(WIDTH))

    def construct(self, x: Tensor) -> Tensor:
        mean_square = mint.mean(mint.square(x), dim=-1, keepdim=True)
        return mint.mul(mint.mul(x, mint.rsqrt(mint.add(mean_square, 1e-6))), self.weight)


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = RMSNorm()
        self.attention = Attention()
        self.mlp_norm = RMSNorm()
        self.mlp = nn.SequentialCell(mint.nn.Linear(WIDTH, 4 * WIDTH), mint.nn.SiLU(), mint.nn.Linear(4 * WIDTH, WIDTH))

    def construct(self, x: Tensor) -> Tensor:
        x = mint.add(x, self.attention(self.attention_norm(x)))
        return mint.add(x, self.mlp(self.mlp_norm(x)))


class GPT(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.letters = Parameter(initializer("normal", (len(LETTERS), WIDTH)))
        self.places = Parameter(initializer("normal", (SEQUENCE, WIDTH)))
        self.blocks = nn.SequentialCell(*[Block() for _ in range(LAYERS)])
        self.norm = RMSNorm()
        self.head = mint.nn.Linear(WIDTH, len(LETTERS), bias=False)

    def construct(self, letters: Tensor) -> Tensor:
        x = ops.gather(self.letters, letters, 0) + self.places
        return self.head(self.norm(self.blocks(x)))


def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of the text and, as targets, the same windows one letter on."""
    numbers = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)
    random = np.random.default_rng(0)
    for _ in range(steps):
        starts = random.integers(0, len(numbers) - SEQUENCE - 1, BATCH)
        windows = np.stack([numbers[start : start + SEQUENCE + 1] for start in starts])
        yield Tensor(windows[:, :-1]), Tensor(windows[:, 1:])


def use_weights(file: Path, network: nn.Cell) -> None:
    """Start from the weights in `file`, which is written where there is none."""
    parameters = {parameter.name: parameter for parameter in network.trainable_params()}
    if not file.exists():
        np.savez(file, **{name: parameter.asnumpy() for name, parameter in parameters.items()})
    with np.load(file) as weights:
        for name, parameter in parameters.items():
            parameter.set_data(Tensor(weights[name]))


def loss_of(network: GPT, letters: Tensor, targets: Tensor) -> Tensor:
    logits = network(letters)
    return nn.CrossEntropyLoss()(mint.reshape(logits, (-1, len(LETTERS))), mint.reshape(targets, (-1,)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config.json", help="configuration in this folder")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--weights", type=Path, help="file of weights to start from")
    arguments = parser.parse_args()

    seed_all(1234)
    debugger = PrecisionDebugger(HERE / arguments.config)

    network = GPT()
    if arguments.weights:
        use_weights(arguments.weights, network)
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-2)
    if arguments.config == "gradients.json":
        debugger.monitor(optimizer)

    def loss_now(letters: Tensor, targets: Tensor) -> Tensor:
        return loss_of(network, letters, targets)

    forward_backward = mindspore.value_and_grad(loss_now, None, optimizer.parameters)
    for number, (letters, targets) in enumerate(batches(arguments.steps)):
        debugger.start(network)
        loss, gradients = forward_backward(letters, targets)
        debugger.stop()
        optimizer(gradients)
        debugger.step()
        print(f"step {number}: loss {float(loss):.6f}")


if __name__ == "__main__":
    main()
