"""seed_all on real MindSpore, in processes of their own: seeds and deterministic computing are process-wide."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.mindspore.framework import seed_all

pytestmark = pytest.mark.needs("mindspore")

DRAW = """
import os, random
import mindspore, numpy as np
from mindspore import mint, nn, ops
from mindspore.common.generator import default_generator
from msprobe_collector.mindspore.framework import seed_all

def draw():
    layer = nn.Dropout(p=0.5).set_train()
    values = [layer(ops.ones((64,))), ops.dropout(ops.ones((64,))), nn.Dense(3, 3).weight]
    arrays = [value.asnumpy().tolist() for value in values]
    return [random.random(), np.random.rand(), default_generator.initial_seed(), *arrays]
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], str]:
    """Run code after DRAW; what it prints."""
    return functools.partial(run_script, tmp_path)


def run_script(folder: Path, code: str) -> str:
    (folder / "script.py").write_text(DRAW + code)  # a file: MindSpore compiles graphs from files only
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_equal_seeds_draw_equal_numbers_and_others_do_not(run: Callable[[str], str]) -> None:
    code = """
seed_all(7); first = draw()
seed_all(7); assert draw() == first
seed_all(8); assert not any(a == b for a, b in zip(draw(), first))
print(os.environ["PYTHONHASHSEED"], first[2], mindspore.get_context("deterministic"))
"""
    assert run(code) == "8 7 OFF"


def test_deterministic_computing_is_switched_on_once(run: Callable[[str], str]) -> None:
    code = """
seed_all(mode=True); seed_all(mode=True)
print(mindspore.get_context("deterministic"), os.environ["HCCL_DETERMINISTIC"])
"""
    assert run(code) == "ON true"


DROPOUT = """
before = {"nn": nn.Dropout(p=0.5), "nn 2d": nn.Dropout2d(p=0.5), "nn keep_prob": nn.Dropout(keep_prob=0.5)}
original = mint.nn.functional.dropout, nn.Dropout.construct, ops.Dropout.__init__
from mindspore.ops import dropout as imported_before
seed_all(3, rm_dropout=True)
x = mindspore.Tensor(np.random.rand(2, 3, 8, 8).astype(np.float32) + 1)
layers = before | {"nn new": nn.Dropout(p=0.5), "mint": mint.nn.Dropout(0.5), "mint 2d": mint.nn.Dropout2d(0.5)}
for layer in layers.values():
    layer.set_train()
calls = layers | {
    "F": lambda x: mint.nn.functional.dropout(input=x, p=0.5), "F 2d": lambda x: mint.nn.functional.dropout2d(x, 0.5),
    "ops": ops.dropout, "by name": imported_before, "ops 2d": ops.dropout2d,
    "primitive": lambda x: ops.Dropout(0.3)(x)[0], "keyword": lambda x: ops.Dropout2D(keep_prob=0.3)(x)[0],
}
changed = lambda names: [name for name in names if not np.array_equal(calls[name](x).asnumpy(), x.asnumpy())]

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(before["nn"], layers["nn new"])
    def construct(self, x):
        return ops.dropout(self.layers(x))
"""


@pytest.mark.graph_compiler
def test_dropout_without_effect_leaves_every_value_in_both_modes(run: Callable[[str], str]) -> None:
    code = """
print(changed(calls), end=" ")
mindspore.set_context(mode=mindspore.GRAPH_MODE)
print(np.array_equal(Net().set_train()(x).asnumpy(), x.asnumpy()))
"""
    assert run(DROPOUT + code) == "[] True"


def test_dropout_comes_back(run: Callable[[str], str]) -> None:
    code = """
seed_all(3, rm_dropout=True); seed_all(3)
assert (mint.nn.functional.dropout, nn.Dropout.construct, ops.Dropout.__init__) == original
print(changed(["nn", "nn 2d", "nn keep_prob", "ops", "by name", "ops 2d", "primitive", "keyword"]))
"""
    assert run(DROPOUT + code) == "['nn', 'nn 2d', 'nn keep_prob', 'ops', 'by name', 'ops 2d', 'primitive', 'keyword']"


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"seed": True}, TypeError, "seed: True"),
        ({"seed": 1.0}, TypeError, "seed: 1.0"),
        ({"seed": -1}, ValueError, "seed: -1"),
        ({"seed": 2**32}, ValueError, "seed: 4294967296"),
        ({"mode": 1}, TypeError, "mode: 1"),
        ({"rm_dropout": "yes"}, TypeError, "rm_dropout: 'yes'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=f"seed_all: {named}"):
        seed_all(**arguments)
