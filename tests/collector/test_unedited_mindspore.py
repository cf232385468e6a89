"""Scripts of MindSpore that do not know of the collector: their steps are found, and they compute the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HEAD = """
import numpy as np, mindspore as ms
from mindspore import nn, Tensor, Model, dataset
ms.set_seed(0)
net = nn.SequentialCell(nn.Dense(8, 4), nn.ReLU())
rows = lambda value: Tensor(np.full((2, 8), value, np.float32))
"""
SCRIPTS = {
    "prediction": "for value in range(3): print(Model(net).predict(rows(value)).asnumpy().tobytes().hex())",
    "loop": """
net.set_train()
optimizer, loss_fn = nn.SGD(net.trainable_params(), 0.1), nn.MSELoss()
step = ms.value_and_grad(lambda x: loss_fn(net(x), x[:, :4]), None, optimizer.parameters)
for value in range(3):
    loss, gradients = step(rows(value))
    optimizer(gradients)
    print(loss.asnumpy().tobytes().hex())
""",
    "Model.train": """
data = dataset.NumpySlicesDataset((np.ones((6, 8), np.float32), np.ones((6, 4), np.float32)), shuffle=False).batch(2)
Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1)).train(1, data, dataset_sink_mode=False)
print(net[0].weight.asnumpy().tobytes().hex())
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_steps_are_found(tmp_path: Path, name: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(HEAD + SCRIPTS[name])

    def run(*command: str) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        arguments = [sys.executable, *command, str(script)]
        done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    collected = run("-m", "msprobe_collector", "collect", "--task=statistics", "--step=0-1", "--dump-path=dump")
    assert collected == run()
    dumps = [json.loads((tmp_path / f"dump/step{step}/proc0/dump.json").read_text())["data"] for step in (0, 1)]
    assert list(dumps[0]) == list(dumps[1])
    assert "Primitive.matmul.MatMul.0.forward" in dumps[0]
    assert any("backward" in record for record in dumps[0]) == (name != "prediction")
    assert not (tmp_path / "dump/step2").exists()
