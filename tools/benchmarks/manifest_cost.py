"""What run.json costs a training of a GPT with 50 million parameters: at `start`, at each forward, at `stop`.

    python -m tools.benchmarks.manifest_cost [--framework torch|mindspore] [--steps N]

The first step has no optimizer state, the others have that of Adam: three times the bytes to take fingerprints of. A
step of the training itself is given beside it. Times are the smallest of the steps, by the clock and of the CPU, which
counts on a busy machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msprobe_collector.recording.guard import Activity, FaultLog, Guard
from msprobe_collector.recording.manifest import ManifestRecorder

WIDTH, LAYERS, WORDS, LENGTH, BATCH = 512, 12, 12000, 64, 2


def torch_training() -> tuple[Any, Callable[[Callable[[Any], None]], None], Any, Any]:
    """(model, one step that shows its batch, facts of a run, batch)."""
    import torch
    from torch import nn

    from msprobe_collector.pytorch.manifest import TorchFacts

    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH),
        nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        nn.Linear(WIDTH, WORDS),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batch = torch.randint(WORDS, (BATCH, LENGTH))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten()).backward()
        optimizer.step()

    count = sum(item.numel() for item in model.parameters())
    print(f"PyTorch {torch.__version__}, {count / 1e6:.1f} million parameters, {torch.get_num_threads()} threads")
    return model, step, TorchFacts, batch


def mindspore_training() -> tuple[Any, Callable[[Callable[[Any], None]], None], Any, Any]:
    """The same with MindSpore."""
    import mindspore
    import numpy as np
    from mindspore import Tensor, nn, ops

    from msprobe_collector.mindspore.manifest import MindSporeFacts

    class Block(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mix = nn.LayerNorm([WIDTH]), nn.Dense(WIDTH, 4 * WIDTH)
            self.inner, self.outer = nn.Dense(4 * WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)

        def construct(self, x: Tensor) -> Tensor:
            return x + self.outer(ops.relu(self.inner(ops.relu(self.mix(self.norm(x))))))

    model = nn.SequentialCell(nn.Embedding(WORDS, WIDTH), *[Block() for _ in range(LAYERS)], nn.Dense(WIDTH, WORDS))
    optimizer = nn.Adam(model.trainable_params(), 1e-4)
    batch = Tensor(np.random.randint(0, WORDS, (BATCH, LENGTH)), mindspore.int32)
    loss_of = nn.CrossEntropyLoss()
    computed = mindspore.value_and_grad(
        lambda x: loss_of(model(x).reshape(-1, WORDS), x.reshape(-1)), None, optimizer.parameters
    )

    def step() -> None:
        optimizer(computed(batch)[1])
        optimizer.parameters[0].asnumpy()  # wait

    count = sum(item.size for item in model.get_parameters())
    print(f"MindSpore {mindspore.__version__}, {count / 1e6:.1f} million parameters")
    return model, step, MindSporeFacts, batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=("torch", "mindspore"), default="torch")
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    model, step, facts, batch = (torch_training if given.framework == "torch" else mindspore_training)()
    times: dict[str, list[tuple[float, float]]] = {}

    def timed(name: str, action: Callable[[], Any]) -> None:
        begin, cpu = time.perf_counter(), time.process_time()
        action()
        times.setdefault(name, []).append((time.perf_counter() - begin, time.process_time() - cpu))

    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(Activity(), FaultLog())
        recorder = ManifestRecorder(guard, lambda: Path(folder), facts, Path(folder))
        for number in range(given.steps):
            when = "without state" if number == 0 else "with state"
            timed(f"start, {when}", lambda number=number: recorder.begin(number, [model], None))
            timed("forward", lambda: recorder.called(model, (batch,), {}))
            timed("training step", step)
            timed("stop", recorder.complete)
            recorder.end()
        size = (Path(folder) / "run.json").stat().st_size
    for name, found in times.items():
        clock, cpu = (1e3 * min(column) for column in zip(*found))
        print(f"{name:22} {clock:8.1f} ms, CPU {cpu:8.1f} ms, of {len(found)}")
    print(f"run.json: {size / 1e3:.0f} kB; faults: {guard.faults.summary() or guard.faults.has_any}")


if __name__ == "__main__":
    main()
