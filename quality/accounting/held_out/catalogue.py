"""The held-out catalogue: causes and clean pairs that the accounting was not made with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SCRIPTS = {"pytorch": "torch_runs.py", "mindspore": "mindspore_runs.py"}


@dataclass(frozen=True)
class HeldOut:
    """Two runs of one network.

    Attributes:
        name: of the row.
        kind: formula, kernel, data or dtype; "" for a pair in which nothing is wrong.
        framework: `pytorch` or `mindspore`.
        network: see the script of that framework.
        expected: calls of which exactly one must be named, or `parameter NAME`, `batch`; empty where nothing is wrong.
        target, golden: settings of both runs, see `Run` of the script.
    """

    name: str
    kind: str
    framework: str
    network: str
    expected: tuple[str, ...] = ()
    target: dict[str, Any] = field(default_factory=dict)
    golden: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """(target, golden) dumps, each by a process of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        script = Path(__file__).with_name(_SCRIPTS[self.framework])
        found = []
        for side, options in (("target", self.target), ("golden", self.golden)):
            wanted = json.dumps({"network": self.network, **options})
            command = [sys.executable, str(script), str(folder / side), wanted]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{self.name}: {command} ended with {done.returncode}:\n{done.stderr[-2000:]}")
            found.append(next((folder / side).rglob("dump.json")))
        return found[0], found[1]


def _torch(name: str, kind: str, network: str, expected: tuple[str, ...], **target: Any) -> HeldOut:
    golden = {"dtype": target["dtype"]} if "dtype" in target else {}
    return HeldOut(name, kind, "pytorch", network, expected, target, golden)


def _mindspore(name: str, kind: str, network: str, expected: tuple[str, ...], **target: Any) -> HeldOut:
    return HeldOut(name, kind, "mindspore", network, expected, target)


CAUSES = (
    _torch("slope 0.02 for 0.01", "formula", "resnet", ("Functional.leaky_relu.2",), plan={"slope": 0.02}),
    _torch("pad not counted", "formula", "resnet", ("Functional.avg_pool2d.0",), plan={"counts_pad": False}),
    _torch("eps 1e-3 for 1e-5", "formula", "mixer", ("Functional.layer_norm.3",), plan={"eps": 1e-3}),
    _torch("beta 2 for 1", "formula", "mixer", ("Functional.softplus.2",), plan={"beta": 2}, dtype="float64"),
    _torch("residual left out", "formula", "mixer", ("Tensor.__add__.3",), plan={"no_residual": 1}),
    _torch("bias of one forget gate", "formula", "lstm", ("Tensor.__add__.3",), plan={"forget_bias": 3}),
    _torch("sigmoid 0.5 % off", "kernel", "lstm", ("Torch.sigmoid.7",), kernel=("sigmoid", 7, 0, "1.005")),
    _torch(
        "sigmoid 4 % off in bfloat16",
        "kernel",
        "lstm",
        ("Torch.sigmoid.7",),
        kernel=("sigmoid", 7, 0, "1.04"),
        dtype="bfloat16",
    ),
    _torch(
        "low-precision batch norm",
        "kernel",
        "resnet",
        ("Functional.batch_norm.2",),
        kernel=("native_batch_norm", 2, 0, "low"),
    ),
    _torch(
        "gradient of a filter 3 % off",
        "kernel",
        "resnet",
        ("Functional.conv2d.2",),
        kernel=("convolution_backward", 1, 1, "1.03"),
    ),
    _torch("one infinite element", "kernel", "mixer", ("Functional.mish.1",), kernel=("mish", 1, 0, "infinite")),
    _torch("samples swapped", "kernel", "mixer", ("Torch.mean.0",), kernel=("mean", 0, 0, "swapped")),
    _torch(
        "hole in a gradient",
        "kernel",
        "mixer",
        ("Functional.softplus.1",),
        kernel=("softplus_backward", 1, 0, "hole"),
        dtype="float64",
    ),
    _torch("state kept from before", "data", "lstm", ("batch", "constant"), data="state kept"),
    _torch("a row of a table is zero", "data", "lstm", ("parameter words.weight",), data="row of a table"),
    _torch("weight before an update", "data", "mixer", ("parameter token.1.weight",), data="stale weight"),
    _torch("samples in another order", "data", "resnet", ("batch",), data="swapped samples"),
    _torch("labels shifted", "data", "lstm", ("batch", "constant"), data="shifted labels"),
    _torch("a branch detached", "data", "resnet", ("gradient Torch.add.0",), plan={"detach": 1}),
    _torch("a layer in bfloat16", "dtype", "mixer", ("Tensor.bfloat16.0",), plan={"low": 1}, dtype="float64"),
    _mindspore("silu 0.5 % off", "kernel", "mixer", ("MintFunctional.silu.1",), kernel=("silu", 1, "1.005")),
    _mindspore("tail of a tanh", "kernel", "cnn", ("Mint.tanh.0",), kernel=("tanh", 0, "tail")),
    _mindspore("tile of a square", "kernel", "mixer", ("Mint.square.2",), kernel=("square", 2, "tile")),
    _mindspore("eps 1e-3 for 1e-5", "formula", "mixer", ("Mint.add.4",), plan={"eps": 1e-3}),
    _mindspore("eps of batch norm", "formula", "cnn", ("Primitive.bn_train.BatchNorm.0",), plan={"eps": 1e-2}),
    _mindspore("elu for relu", "formula", "cnn", ("Functional.elu.0", "Functional.relu.0"), plan={"elu": True}),
    _mindspore("stride 1 for 2 in a pool", "formula", "cnn", ("Primitive.avg_pool.AvgPool.0",), plan={"stride": 1}),
    _mindspore("a factor of 1.2 too many", "formula", "mixer", ("Mint.mul.12",), plan={"gain": 1.2}),
    _mindspore("one filter weight", "data", "cnn", ("parameter second.weight",), data="second.weight"),
    _mindspore("one pixel", "data", "cnn", ("batch",), data="batch"),
    # Nothing in the dump says that these numbers are labels: of unknown origin, where they are used first.
    _mindspore("labels reversed", "data", "mixer", ("batch", "Mint.mul.12"), data="labels"),
    _mindspore("a step through float16", "dtype", "mixer", ("Tensor.astype.0", "Tensor.to.0"), plan={"half": 1}),
)


def _clean(name: str, framework: str, network: str, target: dict[str, Any], golden: dict[str, Any]) -> HeldOut:
    return HeldOut(f"{name}, {network}", "", framework, network, (), target, golden)


_SCALED = {"loss_scale": 1024.0}
_SEED = {"seed": 3}
CLEAN = (
    _clean("bfloat16 against float32", "pytorch", "resnet", {"dtype": "bfloat16"}, {}),
    _clean("bfloat16 against float32", "pytorch", "mixer", {"dtype": "bfloat16"}, {}),
    _clean("bfloat16 against float32", "pytorch", "lstm", {"dtype": "bfloat16"}, {}),
    _clean("float16 against float32", "pytorch", "lstm", {"dtype": "float16", **_SCALED}, _SCALED),
    _clean(
        "float16 against float64", "pytorch", "mixer", {"dtype": "float16", **_SCALED}, {"dtype": "float64", **_SCALED}
    ),
    _clean("float32 against float64", "pytorch", "lstm", _SEED, {"dtype": "float64", **_SEED}),
    _clean("without oneDNN", "pytorch", "resnet", {"way": "mkldnn-off"}, {}),
    _clean("channels last", "pytorch", "resnet", {"way": "channels-last"}, {}),
    _clean("float16 against float32", "mindspore", "cnn", {"dtype": "float16"}, {}),
    _clean("float16 against float32", "mindspore", "mixer", {"dtype": "float16"}, {}),
    _clean("other order of summation", "mindspore", "mixer", {"way": "two-parts"}, {}),
    _clean("batch moved by a rounding", "mindspore", "cnn", {"perturbed": True}, {}),
    _clean("the same twice", "mindspore", "cnn", _SEED, _SEED),
)
