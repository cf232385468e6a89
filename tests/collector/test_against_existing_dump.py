"""Values, not only names: our dump of a step beside the one that the existing collector wrote of the same step."""

from __future__ import annotations

import json

import mindspore as ms
import numpy as np
import pytest
from collector.small_gpt import Training
from mindspore import Tensor
from real_dumps import real_dumps

from msprobe_collector.mindspore.discovery import own_parameters

EXISTING = real_dumps() / "gpt_tiny_mix" / "step0" / "rank0"
#: Largest distance of two statistics, in parts of the larger of the tensor's norm and 1e-3: theirs are summed in
#: float32, and kernels may add in another order on another processor.
TOLERANCE = 2e-5


def recorded(name):
    return np.load(EXISTING / "dump_tensor_data" / f"{name}.npy")


def same_training():
    """The training of the existing dump: its parameters, its batch."""
    training = Training()
    for path, cell in training.net.cells_and_names():
        for name, parameter in own_parameters(cell).items() if path else ():
            file = f"Cell.{path}.{type(cell).__name__}.forward.0.parameters.{name}"
            parameter.set_data(Tensor(recorded(file)))
    training.net.e.set_data(Tensor(recorded("Functional.gather.0.forward.input.0")))
    training.ids = Tensor(recorded("Functional.gather.0.forward.input.1"), ms.int64)
    training.mask = Tensor(recorded("Mint.where.0.forward.input.0"))
    training.labels = Tensor(recorded("Mint.mul.12.forward.input.1"))
    return training


def tensors(value):
    """The encoded tensors in a record, in their order."""
    if isinstance(value, dict) and value.get("type") == "mindspore.Tensor":
        return [value]
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]  # gradients of parameters stand in the order of their arrival
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, list) else []


def is_reordered(name):
    """Backward records of Primitives stand in firing order there and in that of the arguments here."""
    return name.startswith("Primitive") and name.endswith("backward")


def in_any_order(found):
    return sorted(found, key=lambda tensor: (tensor["shape"], tensor["Norm"]))


@pytest.fixture
def both(make_debugger, records):
    training = same_training()
    with make_debugger(level="mix").collect(training.net, rank_id=0):
        training.step()
    return records(), json.loads((EXISTING / "dump.json").read_text())["data"]


def test_statistics_are_those_of_the_existing_collector(both):
    ours, theirs = both
    assert ours.keys() == theirs.keys()
    compared = 0
    for name, record in theirs.items():
        pair = tensors(ours[name]), tensors(record)
        if is_reordered(name):
            pair = tuple(map(in_any_order, pair))
        assert len(pair[0]) == len(pair[1]), name
        for our, their in zip(*pair):
            if their["shape"] == []:
                their["Norm"] = abs(their["Norm"])  # its norm of a single number is the number, with its sign
            scale = max(their["Norm"] or 0.0, 1e-3)
            for key in ("Max", "Min", "Mean", "Norm"):
                if their[key] is None:
                    assert our[key] is None, (name, key)
                else:
                    assert our[key] == pytest.approx(their[key], abs=TOLERANCE * scale), (name, key)
                    compared += 1
    assert compared > 2000


def test_integers_are_written_as_integers(both):
    ids = [tensors(data["Functional.gather.0.forward"])[1] for data in both]
    assert [type(tensor["Max"]) for tensor in ids] == [int, float]
    assert ids[0]["Max"] == ids[1]["Max"]
