"""Records of MindSpore's optimizers."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn

from msprobe_collector.mindspore.optimizers import OptimizerCalls


def test_a_parameter_that_bears_the_path_of_another_one_has_a_name_of_its_own(make_debugger, records):
    network = nn.SequentialCell(nn.Dense(3, 2, has_bias=False))
    network[0].weight.name = "weight"
    outside = Parameter(Tensor(np.full((2, 3), 5, "float32")), name="0.weight")
    optimizer = nn.SGD([*network.trainable_params(), outside], 0.1)
    with make_debugger(level="mix").collect(network):
        optimizer(tuple(Tensor(np.full((2, 3), value, "float32")) for value in (1, 2)))
    record = records()["Optimizer.SGD.0.forward"]["input_kwargs"]
    assert record["gradients.0.weight"]["Max"] == 1
    assert record["gradients.param_groups.0.params.1"]["Max"] == 2
    assert record["parameters.param_groups.0.params.1"]["Max"] == 5


def test_a_record_says_that_settings_are_missing(make_debugger, records, monkeypatch):
    def fails(self, optimizer):
        raise RuntimeError("no settings")

    monkeypatch.setattr(OptimizerCalls, "_settings", fails)
    network = nn.SequentialCell(nn.Dense(3, 2, has_bias=False))
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    with make_debugger(level="mix").collect(network):
        optimizer((Tensor(np.ones((2, 3), "float32")),))
    record = records()["Optimizer.SGD.0.forward"]
    assert record["fault"] == "of its input values some are missing: RuntimeError: no settings"
