"""Hyper-parameters of MindSpore's optimizers, per group."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mindspore import Parameter, Tensor, mint, nn
from mindspore.experimental import optim

from msprobe_collector.mindspore.optimizers import group_parameters, group_settings


def parameters() -> list[Parameter]:
    return nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2)).trainable_params()


MADE: dict[str, Any] = {
    "Momentum": lambda: nn.Momentum(parameters(), 0.25, 0.9),
    "SGD": lambda: nn.SGD(parameters(), 0.25, momentum=0.5, nesterov=True),
    "Adam": lambda: nn.Adam(parameters(), 0.25),
    "AdamWeightDecay": lambda: nn.AdamWeightDecay(parameters(), 0.25),
    "Lamb": lambda: nn.Lamb(parameters(), 0.25),
    "RMSProp": lambda: nn.RMSProp(parameters(), 0.25),
    "Adagrad": lambda: nn.Adagrad(parameters(), learning_rate=0.25),
    "Rprop": lambda: nn.Rprop(parameters(), 0.25),
    "mint.AdamW": lambda: mint.optim.AdamW(parameters(), lr=0.25),
    "mint.SGD": lambda: mint.optim.SGD(parameters(), lr=0.25, momentum=0.9),
    "experimental.Adam": lambda: optim.Adam(parameters(), lr=0.25),
}


@pytest.mark.parametrize("name", MADE)
def test_settings_are_json_and_hold_what_was_given(name: str) -> None:
    (found,) = group_settings(MADE[name]())
    assert found == json.loads(json.dumps(found))
    assert (found["lr"], "weight_decay" in found) == (0.25, True)
    assert not {"global_step", "beta1_power", "is_group", "param_length"} & found.keys()


def test_names_are_those_of_the_arguments_and_numbers_as_they_were_typed() -> None:
    optimizer = nn.Adam(parameters(), 1e-3, beta1=0.8, eps=1e-6, weight_decay=0.01, use_amsgrad=True)
    (found,) = group_settings(optimizer)
    wanted = {"lr": 1e-3, "beta1": 0.8, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01, "use_amsgrad": True}
    assert found.items() >= wanted.items()
    (found,) = group_settings(mint.optim.AdamW(parameters(), lr=1e-3, betas=(0.8, 0.95)))
    assert found.items() >= {"lr": 1e-3, "betas": [0.8, 0.95], "eps": 1e-8, "weight_decay": 0.01}.items()


def test_a_decay_is_given_without_the_loss_scale() -> None:
    optimizer = nn.Momentum(parameters(), 0.1, 0.9, weight_decay=0.1, loss_scale=1024.0, use_nesterov=True)
    (found,) = group_settings(optimizer)
    wanted = {"weight_decay": 0.1, "loss_scale": 1024.0, "momentum": 0.9, "use_nesterov": True, "lr": 0.1}
    assert found.items() >= wanted.items()


def test_groups_have_their_own_rate_and_decay() -> None:
    first = parameters()
    groups = [{"params": first[2:], "lr": 0.5}, {"params": first[:2], "weight_decay": 0.01}]
    optimizer = nn.Adam(groups, 0.1)
    found = group_settings(optimizer)
    assert [(group["lr"], group["weight_decay"]) for group in found] == [(0.5, 0.0), (0.1, 0.01)]
    assert [[item.name for item in group] for group in group_parameters(optimizer)] == [
        ["1.weight", "1.bias"],
        ["0.weight", "0.bias"],
    ]
    optimizer = mint.optim.SGD([{"params": first[:1], "lr": 0.5}, {"params": first[1:]}], lr=0.1)
    assert [group["lr"] for group in group_settings(optimizer)] == [0.5, 0.1]
    assert [len(group) for group in group_parameters(optimizer)] == [1, 3]


def test_a_list_of_rates_gives_that_of_the_next_step() -> None:
    first = parameters()
    optimizer = nn.SGD(first, [0.5, 0.25, 0.125])
    assert (group_settings(optimizer)[0]["lr"], group_settings(optimizer)[0]["lr_schedule"]) == (
        0.5,
        {"class": "_IteratorLearningRate", "length": 3},
    )
    optimizer(tuple(Tensor(item.asnumpy()) for item in first))
    assert group_settings(optimizer)[0]["lr"] == 0.25


def test_a_schedule_is_computed_and_named_with_its_settings() -> None:
    optimizer = nn.Momentum(parameters(), nn.ExponentialDecayLR(0.1, 0.5, 1), 0.9)
    (found,) = group_settings(optimizer)
    assert found["lr"] == 0.1
    schedule = found["lr_schedule"]
    assert isinstance(schedule, dict)
    assert schedule.items() >= {"class": "ExponentialDecayLR", "decay_rate": 0.5, "decay_steps": 1}.items()


def test_a_decay_by_schedule_is_named() -> None:
    optimizer = nn.Momentum(parameters(), 0.1, 0.9, weight_decay=nn.ExponentialDecayLR(0.01, 0.5, 1), loss_scale=8.0)
    (found,) = group_settings(optimizer)
    schedule = found["weight_decay_schedule"]
    assert isinstance(schedule, dict)
    assert (found["weight_decay"], schedule["class"]) == (0.01, "ExponentialDecayLR")


def test_an_optimizer_of_the_script_has_its_attributes() -> None:
    class Own(nn.Optimizer):
        def __init__(self, given: list[Parameter]) -> None:
            super().__init__(0.25, given, weight_decay=0.5)
            self.trust = 0.125
            self.moments = self.parameters.clone(prefix="moments", init="zeros")

    assert group_settings(Own(parameters())) == [{"trust": 0.125, "lr": 0.25, "weight_decay": 0.5, "loss_scale": 1.0}]
