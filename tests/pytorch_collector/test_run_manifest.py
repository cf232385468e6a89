"""run.json of a PyTorch training: what it holds, at every level, whenever the optimizer runs, and what it costs."""

from __future__ import annotations

import copy
import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizer_wrapper import RenamedWrapper, WrappingOptimizer
from torch import nn

from msprobe_collector.dump_format.manifest import Manifest, read_manifest
from msprobe_collector.pytorch.manifest import TorchFacts
from msprobe_collector.recording.manifest import Fingerprints, ProcessObjects


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.25), nn.Linear(8, 2))


def trained(debugger: Any, *, is_given: bool = True, forwards: int = 1, steps_inside: bool = False) -> nn.Module:
    """One step, whose optimizer runs after `stop`, as in most scripts, or before."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.8, 0.95))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    debugger.start(model if is_given else None)
    for number in range(forwards):
        model(torch.full((2, 4), float(number))).sum().backward()
    if not steps_inside:
        debugger.stop()
    for group in optimizer.param_groups:
        group["lr"] *= 2  # a schedule of the script's own, after start
    optimizer.step()
    scheduler.step()
    if steps_inside:
        debugger.stop()
    debugger.step()
    return model


@pytest.fixture
def manifest(step_folder: Any) -> Any:
    """manifest(): that of step 0, which was written without a fault."""

    def read(step: int = 0) -> Manifest:
        assert not (step_folder(step) / "dump_error_info.log").exists()
        json.loads((step_folder(step) / "run.json").read_text(), parse_constant=pytest.fail)
        return read_manifest(step_folder(step) / "run.json")

    return read


MODES = [
    {"level": "L0"},
    {"level": "L1"},
    {"level": "mix"},
    {"level": "mix", "task": "tensor"},
    {"level": "mix", "summary_mode": "sketch"},
    {"level": "mix", "summary_mode": "md5"},
    {"level": "mix", "task": "structure"},
    {"level": "L1", "task": "overflow_check"},
    {"level": "mix", "common": {"async_dump": True}},
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
@pytest.mark.parametrize("steps_inside", [False, True], ids=["step after stop", "step before stop"])
def test_every_level_and_task_has_it_with_what_the_optimizer_stepped_with(
    make_debugger: Any, manifest: Any, mode: dict[str, Any], steps_inside: bool
) -> None:
    trained(make_debugger(**mode), steps_inside=steps_inside)
    found = manifest()
    (optimizer,) = found.optimizers
    (group,) = optimizer.groups
    assert (optimizer.kind, group.settings["lr"]) == ("torch.optim.adamw.AdamW", 2e-3)
    assert group.settings["betas"] == [0.8, 0.95]
    assert group.parameters == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert optimizer.schedulers[0].settings["gamma"] == 0.5
    assert optimizer.state == {}
    assert [one.name for one in found.models[0].parameters] == list(group.parameters)
    (batch,) = found.batches
    assert [(one.name, one.dtype, one.shape) for one in batch] == [("input.0", "float32", (2, 4))]


def test_a_model_that_start_was_not_given_is_the_first_that_runs(make_debugger: Any, manifest: Any) -> None:
    trained(make_debugger(level="L1"), is_given=False, forwards=2)
    found = manifest()
    assert found.optimizers[0].groups[0].parameters == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert [layer.kind for layer in found.models[0].layers] == ["Sequential", "Linear", "Dropout", "Linear"]
    assert found.models[0].layers[2].settings["p"] == 0.25
    assert found.step["forwards"] == 2
    assert found.batches[0][0].fingerprint != found.batches[1][0].fingerprint


def test_a_model_may_give_its_parameters_in_the_manner_of_older_versions(make_debugger: Any, manifest: Any) -> None:
    class Older(nn.Sequential):
        def named_parameters(self, prefix: str = "", recurse: bool = True) -> Any:
            return super().named_parameters(prefix, recurse)

    model = Older(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with make_debugger(level="L1").collect():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    names = ("0.weight", "0.bias")
    assert manifest().optimizers[0].groups[0].parameters == names
    assert tuple(entry.name for entry in manifest().models[0].parameters) == names


def test_the_state_is_that_at_the_beginning_of_the_step(make_debugger: Any, manifest: Any) -> None:
    model = network()
    wanted = TorchFacts().models([model])[0]["parameters"]
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    debugger = make_debugger(level="L0")
    for _ in range(2):
        with debugger.collect(model), torch.autocast("cpu", torch.bfloat16):
            scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    first, second = manifest(0), manifest(1)
    assert [one.fingerprint for one in first.parameters.values()] == [one["fingerprint"] for one in wanted]
    assert all(one.fingerprint != second.parameters[name].fingerprint for name, one in first.parameters.items())
    assert first.step["loss_scale"]["scale"] == 128.0
    assert first.step["autocast"] == {"cpu": "torch.bfloat16"}
    assert first.optimizers[0].state == {}
    assert len(second.optimizers[0].state["momentum_buffer"]) == 4


@pytest.mark.parametrize("sees_wrapper", [False, True], ids=["inner", "wrapper"])
@pytest.mark.parametrize("kind", [WrappingOptimizer, RenamedWrapper])
def test_of_a_wrapper_that_ran_no_constructor_it_is_the_optimizer_inside(
    make_debugger: Any, manifest: Any, sees_wrapper: bool, kind: type[WrappingOptimizer]
) -> None:
    """As with accelerate and the trainers that use it; a scheduler may have been made with either of them."""
    model = network()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    wrapper = kind(inner)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1)
    scheduler.optimizer = wrapper if sees_wrapper else inner
    debugger = make_debugger(level="mix")
    for _ in range(2):
        with debugger.collect(model):
            model(torch.ones(2, 4)).sum().backward()
            wrapper.step()
            wrapper.zero_grad()
    (first,), (second,) = manifest(0).optimizers, manifest(1).optimizers
    assert (first.kind, first.state) == ("torch.optim.adamw.AdamW", {})
    assert [one.kind for one in second.schedulers] == ["torch.optim.lr_scheduler.StepLR"]
    assert sorted(second.state) == ["exp_avg", "exp_avg_sq", "step"]


class Halved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return half(self.inner(value))


def half(value: torch.Tensor) -> torch.Tensor:
    return value * 0.5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["model", "in place", "layer", "function"])
def test_compiled_code_is_named(make_debugger: Any, manifest: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    torch.compiler.reset()
    model: Any = nn.Sequential(nn.Linear(4, 4), Halved())
    if what == "model":
        model = torch.compile(model, backend="aot_eager")
    elif what == "in place":
        model[1].compile(backend="aot_eager")
    elif what == "layer":
        model[1] = torch.compile(model[1], backend="aot_eager")
    else:
        monkeypatch.setattr(sys.modules[__name__], "half", torch.compile(half, backend="aot_eager"))
    with make_debugger(level="mix").collect(model):
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
    found = manifest(0)
    (code,) = found.compiled
    name, path = {"model": ("Sequential", ""), "function": ("half", None)}.get(what, ("Halved", "1"))
    assert (code.name, code.path) == (name, path)
    function = {"model": nn.Sequential.forward, "function": half}.get(what, Halved.forward)
    code_of = getattr(function, "__wrapped__", function).__code__
    assert (code.file, code.line) == (code_of.co_filename, code_of.co_firstlineno)
    names = ["0.weight", "0.bias", "1.inner.weight", "1.inner.bias"]
    assert list(found.parameters) == names, "a compiled layer has the names of the one that is compiled"


def test_whether_layers_ask_for_the_mode_is_told(make_debugger: Any, manifest: Any) -> None:
    class Indirect(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return self.helped(value)

        def helped(self, value: torch.Tensor) -> torch.Tensor:
            return value * 2 if self.training else value

    layers = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Indirect(), nn.GELU()])
    with make_debugger(level="mix").collect(nn.Sequential(*layers)):
        layers[0](torch.ones(2, 4))
    (model,) = manifest(0).models
    assert [layer.reads_mode for layer in model.layers] == [False, False, True, True, True, False]


def test_tied_frozen_and_lazy_parameters_are_told(make_debugger: Any, manifest: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.words.weight
            self.lazy = nn.LazyLinear(3)
            self.words.weight.requires_grad_(False)
            self.register_buffer("mask", torch.ones(2, dtype=torch.bool))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lazy(self.head(self.words(x)))

    model = Tied()
    gc.freeze()  # optimizers of earlier tests may be alive, and all are shown where none has one of these parameters
    with make_debugger(level="L0").collect(model):
        model(torch.tensor([1, 2])).sum().backward()
    found = manifest()
    by_name = found.parameters
    assert (by_name["head.weight"].tied, by_name["words.weight"].requires_grad) == ("words.weight", False)
    assert "lazy.weight" in by_name
    assert [(one.name, one.dtype) for one in found.models[0].buffers] == [("mask", "bool")]
    assert found.optimizers == ()


def test_several_models_and_optimizers_keep_their_names(make_debugger: Any, manifest: Any) -> None:
    models = [network(), network()]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1 * (at + 1)) for at, model in enumerate(models)]
    stranger = torch.optim.SGD([nn.Parameter(torch.ones(2))], 9.0)
    with make_debugger(level="L0").collect(models):
        models[1](models[0](torch.ones(1, 4)).repeat(1, 2)).sum().backward()
    found = manifest()
    groups = {one.groups[0].settings["lr"]: one.groups[0].parameters[0] for one in found.optimizers}
    assert groups == {0.1: "0.0.weight", 0.2: "1.0.weight"}
    assert len(optimizers) + len(stranger.param_groups) == 3  # they are all alive


def test_nothing_of_the_training_is_changed(make_debugger: Any) -> None:
    def run(collects: bool) -> tuple[Any, ...]:
        debugger = make_debugger(level="L1")
        model = trained(debugger) if collects else None
        if model is None:
            model = network()
            optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.8, 0.95))
            model(torch.zeros(2, 4)).sum().backward()
            optimizer.step()
        return *[item.detach().numpy().tobytes() for item in model.parameters()], torch.rand(3).tolist()

    assert run(True) == run(False)


def test_no_hook_stays_on_an_optimizer_after_the_step(make_debugger: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    debugger = make_debugger(level="L1")
    debugger.start(model)
    assert optimizer._optimizer_step_pre_hooks
    debugger.stop()
    debugger.step()
    assert not optimizer._optimizer_step_pre_hooks


def test_a_fault_of_ours_costs_its_section_and_is_a_line(
    make_debugger: Any, step_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("planted")

    for name in ("models", "randomness", "tensors"):
        monkeypatch.setattr(TorchFacts, name, fail)
    trained(make_debugger(level="L1"))
    found = read_manifest(step_folder() / "run.json")
    assert (found.models, found.optimizers[0].kind) == ((), "torch.optim.adamw.AdamW")
    assert "run.json: models: ValueError: planted" in (step_folder() / "dump_error_info.log").read_text()


def test_fingerprints_of_a_device_are_fetched_together_and_said_to_be_of_another_kind() -> None:
    from msprobe_collector.pytorch import manifest as of_pytorch
    from msprobe_collector.pytorch.tensor_values import sum_of_bits

    fetched: list[int] = []

    def fetch(numbers: Any) -> list[str]:
        fetched.append(len(numbers))
        return of_pytorch._fetched(numbers)

    # There is no device here: what is asked of one is asked of the CPU.
    facts = TorchFacts()
    facts._fingerprints = Fingerprints(lambda tensor: sum_of_bits(tensor.detach()), fetch)
    first = facts.models([network()])[0]["parameters"]
    batch = facts.tensors([torch.ones(3), {"a": torch.zeros(2)}], {"mask": torch.ones(2)})
    assert fetched == [4]
    assert [one["name"] for one in facts.settled([batch])[0]] == ["input.0", "input.1.a", "kwargs.mask"]
    assert fetched == [4, 3]
    assert all(one["fingerprint"].startswith("sum ") for one in first)
    assert first[0]["fingerprint"] != first[2]["fingerprint"]
    assert facts.models([network()])[0]["parameters"] == first


def test_the_process_is_looked_through_once_and_again_for_an_optimizer_that_is_new(
    make_debugger: Any, manifest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    look = ProcessObjects._looked_for

    def counted(self: ProcessObjects) -> dict[str, list[Any]]:
        looks.append(None)
        return look(self)

    monkeypatch.setattr(ProcessObjects, "_looked_for", counted)
    debugger, model, optimizers = make_debugger(level="L1"), network(), []
    optimizers.append(torch.optim.SGD(model.parameters(), 0.1))
    for step in range(5):
        if step == 3:
            optimizers.append(copy.deepcopy(optimizers[0]))
            optimizers[1].param_groups[0].update(lr=0.5, params=optimizers[0].param_groups[0]["params"])
        debugger.start(model)
        model(torch.ones(2, 4)).sum().backward()
        debugger.stop()
        optimizers[0].step()
        debugger.step()
    rates = [[one.groups[0].settings["lr"] for one in manifest(step).optimizers] for step in range(5)]
    assert [sorted(each) for each in rates] == [[0.1]] * 3 + [[0.1, 0.5]] * 2
    assert len(looks) == 2


def test_secrets_are_not_read(make_debugger: Any, step_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-1")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", "secret-2", "--token=secret-3", "http://u:secret-4@h/x"])
    trained(make_debugger(level="L1"))
    text = (step_folder() / "run.json").read_text()
    assert "secret" not in text
    assert read_manifest(step_folder() / "run.json").environment["NCCL_ALGO"] == "Ring"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["start", "stop"])
def test_a_killed_training_leaves_a_whole_file(tmp_path: Path, place: str) -> None:
    script = (
        "import os, signal, sys, torch\nfrom msprobe_collector.pytorch import PrecisionDebugger\n"
        "model = torch.nn.Linear(3, 2)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        f"debugger = PrecisionDebugger(task='statistics', level='L1', dump_path={str(tmp_path)!r})\n"
        "debugger.start(model)\nif sys.argv[1] == 'start': os.kill(os.getpid(), signal.SIGKILL)\n"
        "model(torch.ones(1, 3)).sum().backward()\ndebugger.stop()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, place], env={**os.environ}, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = read_manifest(tmp_path / "step0" / "proc0" / "run.json")
    assert found.optimizers[0].groups[0].parameters == ("weight", "bias")
    assert (found.batches is None) is (place == "start")
