"""A small convolutional network on CPU or Ascend, PyNative mode, trained by `Model.train`.

python train.py          collects steps 0 and 2 into ./cnn_dump (config.json)
"""

from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import initializer
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import LossMonitor, Model

from msprobe_collector import MsprobeStep, PrecisionDebugger, seed_all

HERE = Path(__file__).parent
CLASSES, SIZE, BATCH, STEPS = 4, 12, 8, 3


class Convolution(nn.Cell):
    """3 x 3, to the same size. Not nn.Conv2d: a dump holds the arguments of a call, not the attributes of an object."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer("he_uniform", (channels_out, channels_in, 3, 3)))
        self.bias = Parameter(initializer("zeros", (channels_out,)))

    def construct(self, images: Tensor) -> Tensor:
        return ops.conv2d(images, self.weight, self.bias, pad_mode="pad", padding=1)


class CNN(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = Convolution(1, 8)
        self.norm = mint.nn.GroupNorm(2, 8)
        self.second = Convolution(8, 16)
        self.classes = mint.nn.Linear(16 * (SIZE // 4) ** 2, CLASSES)

    def construct(self, images: Tensor) -> Tensor:
        x = ops.max_pool2d(mint.nn.functional.relu(self.norm(self.first(images))), 2, 2)
        x = ops.avg_pool2d(mint.nn.functional.relu(self.second(x)), 2, 2)
        return self.classes(mint.flatten(x, 1))


def dataset() -> NumpySlicesDataset:
    """Noisy stripes; the class is their direction and width."""
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, BATCH * STEPS).astype(np.int32)
    places = np.indices((SIZE, SIZE))
    images = np.stack([np.sin(places[label % 2] * (1 + label // 2)) for label in labels])
    noisy = images + 0.1 * random.normal(size=images.shape)
    return NumpySlicesDataset((noisy[:, None].astype(np.float32), labels), shuffle=False).batch(BATCH)


def main() -> None:
    seed_all(1234)
    debugger = PrecisionDebugger(HERE / "config.json")
    network = CNN()
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.05, momentum=0.9)
    model = Model(network, nn.CrossEntropyLoss(), optimizer)
    model.train(1, dataset(), callbacks=[MsprobeStep(debugger), LossMonitor()], dataset_sink_mode=False)


if __name__ == "__main__":
    main()
