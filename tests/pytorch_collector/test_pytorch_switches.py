"""Off means absent; seeds; the gradient monitor; folders."""

from __future__ import annotations

import csv
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from optimizer_wrapper import WrappingOptimizer
from torch import nn, overrides

from msprobe_collector import ConfigurationError, DebuggerError
from msprobe_collector.pytorch import seed_all


def state() -> tuple[object, ...]:
    return (
        nn.Module.__call__,
        torch.compile,
        torch.distributed.all_reduce,
        torch.distributed.Work.wait,
        overrides.has_torch_function,
        torch.autograd._engine_run_backward,
        torch.utils.checkpoint.CheckpointFunction.__dict__["forward"],
        overrides._len_torch_function_stack(),
        F.relu,
        torch.Tensor.__add__,
    )


def test_nothing_is_left_after_stop(make_debugger) -> None:
    before = state()
    debugger = make_debugger(level="mix")
    net = nn.Sequential(nn.Linear(2, 2))
    assert state() == before
    debugger.start(net)
    assert state() != before
    net(torch.ones(1, 2)).sum().backward()
    debugger.stop()
    assert state() == before
    debugger.step()
    assert not any(parameter._backward_hooks for parameter in net.parameters())
    assert set(vars(net)) == set(vars(nn.Sequential()))


def test_a_mode_that_the_script_leaves_on_stays(make_debugger) -> None:
    debugger = make_debugger()
    with torch.device("meta"):
        debugger.start()
    with torch.device("meta"):
        debugger.stop()
        assert torch.empty(1).is_meta
    assert overrides._len_torch_function_stack() == 0


def test_importing_loads_no_framework() -> None:
    code = (
        "import sys; from msprobe_collector.pytorch import PrecisionDebugger;"
        "sys.exit(bool({'torch', 'numpy', 'mindspore'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_equal_seeds_give_equal_numbers() -> None:
    def draw() -> tuple[float, ...]:
        seed_all(7)
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    assert draw() == draw()
    with pytest.raises(ValueError, match="seed_all"):
        seed_all(-1)


def test_dropout_is_removed_and_restored() -> None:
    x = torch.ones(100)
    seed_all(1, rm_dropout=True)
    assert torch.equal(nn.Dropout(0.5)(x), x)
    seed_all(1)
    assert not torch.equal(nn.Dropout(0.5)(x), x)


class Wrapped(nn.Module):
    """As DistributedDataParallel does."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.module = net


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        (lambda net: net[0].named_parameters(), ["weight", "bias"]),
        (lambda net: net.parameters(), ["0.weight", "0.bias"]),
        (lambda net: [{"params": [net[0].bias]}, {"params": [net[0].weight]}], ["0.bias", "0.weight"]),
        (lambda net: Wrapped(net).parameters(), ["0.weight", "0.bias"]),
        (
            lambda net: [*net.parameters(), nn.Parameter(torch.ones(1))],
            ["0.weight", "0.bias", "param_groups.0.params.2"],
        ),
    ],
    ids=["named", "of a model", "groups", "wrapped", "of no model"],
)
@pytest.mark.parametrize("is_wrapped", [False, True], ids=["bare", "in a wrapper"])
def test_gradients_that_the_optimizer_gets(parameters, names, is_wrapped: bool, make_debugger, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    wrapped = Wrapped(net)
    optimizer = torch.optim.SGD(parameters(net), 0.1)
    debugger = make_debugger(level=None, task="grad_probe", grad_level="L1")
    debugger.monitor(WrappingOptimizer(optimizer) if is_wrapped else optimizer)
    wrapped.module(torch.ones(1, 3)).sum().backward()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad
    optimizer.step()
    debugger._at_exit()
    (file,) = (tmp_path / "dump").glob("rank0/grad_summary_0.csv")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [next(iter(row.values())) for row in rows] == names


def test_gradients_of_a_model_are_those_that_its_optimizers_get(make_debugger, tmp_path: Path) -> None:
    net, other = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), nn.Linear(3, 1)
    net[0].bias.requires_grad_(False)
    make_debugger(level=None, task="grad_probe", grad_level="L1").monitor(net)
    for model in (other, net):  # only one of them is watched, whose optimizer is made later
        model(torch.ones(1, 3)).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    (file,) = (tmp_path / "dump").glob("rank0/grad_summary_*.csv")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["param_name"] for row in rows] == ["0.weight", "1.weight", "1.bias"]


def test_equal_names_in_two_models_are_told_apart(make_debugger, tmp_path: Path) -> None:
    first, second = nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Linear(3, 2))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
    names = make_debugger(level=None, task="grad_probe")._framework.optimizers().names(optimizer)
    assert names == tuple(f"param_groups.0.params.{number}" for number in range(4))


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (
            type("Cell", (), {"__module__": "mindspore.nn.cell"})(),
            "import PrecisionDebugger from msprobe_collector.mindspore",
        ),
        ("net", "give a Module, or a list of Modules"),
    ],
    ids=["Cell", "str"],
)
def test_a_model_that_is_no_module_is_refused(make_debugger, model, advice) -> None:
    with pytest.raises(DebuggerError, match=advice):
        make_debugger(level="mix").start(model)


def test_level_l2_of_a_file_for_ascend_becomes_mix(make_debugger, records, caplog) -> None:
    with make_debugger(level="L2").collect(nn.Linear(2, 2)) as debugger:
        torch.sin(torch.ones(2))
    assert debugger.config.level == "mix"
    assert "level mix is taken" in caplog.text
    assert "Torch.sin.0.forward" in records()
    with pytest.raises(ConfigurationError, match="for PyTorch take overflow_check"):
        make_debugger(level="L2", task="exception_dump")


def test_arguments_of_the_existing_tool_without_effect_are_said_once(make_debugger, records, caplog) -> None:
    debugger = make_debugger()
    for _ in range(2):
        debugger.start()
        torch.sin(torch.ones(2))
        debugger.stop()
        seed_all(1, is_enhanced=True)
    assert "Torch.sin.1.forward" in records()
    assert caplog.text.count("seed_all(): is_enhanced is without effect here") == 1
    with pytest.raises(TypeError, match="is_enhanced: 1 is neither"):
        seed_all(1, is_enhanced=1)
    seed_all(1)
