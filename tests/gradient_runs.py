"""Gradients of runs: files built by hand, and the training behind tests/dumps/gradients.

`python tests/gradient_runs.py tests/dumps/gradients` trains that again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

STEPS = 5
#: In `target`, the gradient of tanh has a wrong sign in two of its sixteen units, from this step on.
FAULT_FROM = 3
#: The parameter just below that tanh.
NEAREST = "hidden.bias"


def write_step(
    run: Path,
    step: int,
    gradients: Mapping[str, npt.ArrayLike],
    *,
    rank: int = 0,
    level: str = "L1",
    is_older: bool = False,
) -> Path:
    """Write one step as the collector does, or as the existing tool does (`is_older`); the summary file."""
    folder = run / f"rank{rank}"
    signs = folder / f"step{step}"
    signs.mkdir(parents=True, exist_ok=True)
    middle = {"L0": ["MD5"], "L1": [], "L2": ["(-inf, 0]", "(0, inf)", "=0"]}[level]
    lines = [["param_name", *middle, "max", "min", "norm", "shape", *([] if is_older else ["nan", "inf"])]]
    for name, value in gradients.items():
        values = np.asarray(value, np.float32)
        if level != "L0":
            np.save(signs / f"{name}.npy", values > 0)
        cells = {"L0": [hashlib.md5(values.tobytes()).hexdigest()], "L1": [], "L2": ["0.5", "0.5", "0.0"]}[level]
        figures = [values.max(), values.min(), np.linalg.norm(values)] if values.size else [np.nan, np.nan, 0.0]
        counts = [] if is_older else [np.isnan(values).sum(), np.isinf(values).sum()]
        lines.append([name, *cells, *(str(float(f)) for f in figures), str(list(values.shape)), *map(str, counts)])
    path = folder / f"grad_summary_{step}.csv"
    path.write_text("".join(",".join(f'"{cell}"' if "," in cell else cell for cell in line) + "\n" for line in lines))
    return path


def write_similarities(target: Path, golden: Path, similarities: Mapping[str, list[float]]) -> None:
    """Two runs whose parameters have these similarities, step by step, of a thousand elements."""
    size = 1000
    for step in range(max(map(len, similarities.values()))):
        ones = {name: np.ones(size) for name in similarities}
        write_step(golden, step, ones)
        flipped = {
            name: np.where(np.arange(size) < round(values[step] * size), 1.0, -1.0)
            for name, values in similarities.items()
        }
        write_step(target, step, flipped)


def train(folder: Path, *, is_faulty: bool) -> None:
    """Train three layers for `STEPS` steps with the gradient monitor on; the faulty run also rounds its inputs."""
    import mindspore
    from mindspore import Tensor, nn, ops

    from msprobe_collector.configuration.reader import read_configuration
    from msprobe_collector.mindspore import GradientMonitor

    class Tanh(nn.Cell):
        is_faulty = False

        def construct(self, x: Any) -> Any:
            return ops.tanh(x)

        def bprop(self, x: Any, out: Any, dout: Any) -> Any:
            sign = np.ones(16, np.float32)
            sign[[2, 9]] = -1.0 if self.is_faulty else 1.0
            return (dout * (1 - out * out) * Tensor(sign),)

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Dense(12, 16, has_bias=False)
            self.hidden = nn.Dense(16, 16)
            self.tanh = Tanh()
            self.head = nn.Dense(16, 4, has_bias=False)

        def construct(self, x: Any) -> Any:
            return self.head(self.tanh(self.hidden(ops.sigmoid(self.embed(x)))))

    mindspore.set_seed(7)
    random = np.random.default_rng(7)
    net = Net()
    for parameter in net.trainable_params():
        parameter.set_data(Tensor(random.standard_normal(parameter.shape).astype(np.float32) * 0.4))
    optimizer = nn.SGD(net.trainable_params(), 0.05)
    config = folder.parent / f"{folder.name}.json"
    config.write_text(json.dumps({"task": "grad_probe", "dump_path": str(folder), "grad_probe": {"grad_level": "L1"}}))
    monitor = GradientMonitor(read_configuration(config))
    config.unlink()
    monitor.monitor(optimizer)
    gradient = mindspore.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, optimizer.parameters)
    for step in range(STEPS):
        inputs = random.standard_normal((32, 12)).astype(np.float32)
        labels = random.standard_normal((32, 4)).astype(np.float32)
        if is_faulty:
            inputs = inputs.astype(np.float16).astype(np.float32)
            net.tanh.is_faulty = step >= FAULT_FROM
        _, gradients = gradient(Tensor(inputs), Tensor(labels))
        optimizer(gradients)
    monitor.stop()


if __name__ == "__main__":
    for name in ("target", "golden"):
        train(Path(sys.argv[1]) / name, is_faulty=name == "target")
