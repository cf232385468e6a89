"""Hyper-parameters of PyTorch's optimizers, per group."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn, optim

from msprobe_collector.pytorch.optimizers import group_settings


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(2, 3))]


ALL = sorted(
    name
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer
)


@pytest.mark.parametrize("name", ALL)
def test_every_hyperparameter_of_every_optimizer_is_there_as_json(name: str) -> None:
    optimizer: Any = getattr(optim, name)(parameters(), lr=0.25)
    (found,) = group_settings(optimizer)
    assert found == json.loads(json.dumps(found))
    assert found.keys() == optimizer.param_groups[0].keys() - {"params"}
    assert found["lr"] == 0.25


def test_groups_keep_their_order_and_their_own_settings() -> None:
    first, second = parameters()
    groups = [{"params": [first], "weight_decay": 0.0}, {"params": [second], "lr": 1e-4}]
    found = group_settings(optim.AdamW(groups, lr=1e-3, betas=(0.8, 0.95)))
    assert [(group["lr"], group["weight_decay"], group["betas"]) for group in found] == [
        (1e-3, 0.0, [0.8, 0.95]),
        (1e-4, 0.01, [0.8, 0.95]),
    ]


@pytest.mark.parametrize("way", ["fused", "foreach"])
def test_the_implementation_is_a_setting(way: str) -> None:
    (found,) = group_settings(optim.AdamW(parameters(), lr=1e-3, **{way: True}))
    assert (found["fused"], found["foreach"]) == ((True, None) if way == "fused" else (None, True))


def test_a_rate_in_a_tensor_is_given_as_it_was_typed() -> None:
    (found,) = group_settings(optim.Adam(parameters(), lr=torch.tensor(0.1), fused=True))
    assert found["lr"] == 0.1


def test_a_scheduler_notes_the_first_rate() -> None:
    optimizer = optim.SGD(parameters(), lr=0.5)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    (found,) = group_settings(optimizer)
    assert (found["lr"], found["initial_lr"]) == (0.25, 0.5)


def test_what_has_no_form_in_json_is_named_or_left_out() -> None:
    optimizer = optim.SGD(parameters(), lr=0.5)
    optimizer.param_groups[0].update(filter=sorted, dtype=torch.bfloat16, mask=torch.ones(3), label=object())
    (found,) = group_settings(optimizer)
    assert "mask" not in found
    assert (found["filter"], found["dtype"], found["label"]) == ("sorted", "torch.bfloat16", "object")


def test_what_is_no_optimizer_has_no_groups() -> None:
    assert group_settings(object()) == []
