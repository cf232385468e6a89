"""A small convolutional network on CPU or Ascend, PyNative mode, trained by `Model.train`.

python train.py          collects steps 0 and 2 into ./cnn_dump (config.json)
"""

from pathlib import Path

import numpy as np
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import LossMonitor, Model

from msprobe_collector import MsprobeStep, PrecisionDebugger, seed_all

HERE = Path(__file__).parent
CLASSES, SIZE, BATCH, STEPS = 4, 12, 8, 3


class CNN(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.first = nn.Conv2d(1, 8, 3, has_bias=True)
        self.first_norm = nn.BatchNorm2d(8)
        self.max_pool = nn.MaxPool2d(2, 2)
        self.second = nn.Conv2d(8, 16, 3, pad_mode="pad", padding=1)
        self.second_norm = nn.BatchNorm2d(16)
        self.average_pool = nn.AvgPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.hidden = nn.Dense(16 * (SIZE // 4) ** 2, 32, activation="relu")
        self.dropout = nn.Dropout(p=0.1)
        self.classes = nn.Dense(32, CLASSES)

    def construct(self, images: Tensor) -> Tensor:
        x = self.max_pool(self.relu(self.first_norm(self.first(images))))
        x = self.average_pool(self.relu(self.second_norm(self.second(x))))
        return self.classes(self.dropout(self.hidden(self.flatten(x))))


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
