"""Collecting from scripts that do not know of the collector: their steps are found, and they compute the same."""

from __future__ import annotations

import gc
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizer_wrapper import WrappingOptimizer
from torch import nn
from torch.nn import functional

from msprobe_collector.__main__ import main
from msprobe_collector.dump_format.manifest import empty_run_of, read_manifest
from msprobe_collector.pytorch.unedited_scripts import MOST_STEPS_OF_ONE, TorchStepFinder


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def scheduled() -> list[nn.Module]:
    """A scheduler, clipping, and an evaluation behind each step."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            torch.tanh(model(torch.randn(2, 6)))
    return [model]


def adversarial() -> list[nn.Module]:
    """Two models with an optimizer each: two steps of the discriminator, then one of the generator."""
    generator, discriminator = nn.Linear(4, 6), network()
    ours = torch.optim.Adam(generator.parameters(), lr=0.01)
    theirs = torch.optim.SGD(discriminator.parameters(), lr=0.01)
    for _ in range(3):
        for _ in range(2):
            theirs.zero_grad()
            fake = generator(torch.randn(5, 4)).detach()
            (discriminator(fake) - discriminator(torch.randn(5, 6))).mean().backward()
            theirs.step()
        ours.zero_grad()
        discriminator(generator(torch.randn(5, 4))).mean().neg().backward()
        ours.step()
    return [generator, discriminator]


class Accumulating(WrappingOptimizer):
    """Steps at every second call, as accelerate's does between two updates."""

    calls = 0

    def step(self, closure: Any = None) -> None:
        self.calls += 1
        if self.calls % 2 == 0:
            super().step(closure)
            self.zero_grad()


def accumulated_by_a_wrapper() -> list[nn.Module]:
    """Two batches a step; the script calls `step` behind each."""
    model = network()
    optimizer = Accumulating(torch.optim.AdamW(model.parameters(), lr=0.01))
    for _ in range(6):
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()
    return [model]


def accumulated() -> list[nn.Module]:
    """Two batches a step, a loss scaler, and an optimizer that steps by a closure of its own."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(3):
        for _ in range(2):
            scaler.scale(model(torch.randn(5, 6)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [model]


#: Calls of `linear` in the forward of one step.
TRAININGS = {scheduled: 2, adversarial: 2 * (1 + 4) + 3, accumulated: 4, accumulated_by_a_wrapper: 4}


def trained(training: Callable[[], list[nn.Module]]) -> list[bytes]:
    gc.collect()  # optimizers of other tests would be waited for
    torch.manual_seed(0)
    return [value.numpy().tobytes() for model in training() for value in model.state_dict().values()]


@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: training.__name__)
def test_each_step_is_found_and_the_training_stays_bit_identical(
    training: Callable[[], list[nn.Module]], make_debugger: Any, records: Any, tmp_path: Path
) -> None:
    alone = trained(training)
    finder = TorchStepFinder(make_debugger(level="mix", common={"step": [0, 2]}))
    finder.install()
    collected = trained(training)
    finder.uninstall()

    assert collected == alone
    assert sorted(folder.name for folder in (tmp_path / "dump").iterdir()) == ["step0", "step2"]
    for step in (0, 2):
        names = list(records(step))
        assert sum("linear" in name and "forward" in name for name in names) == TRAININGS[training]
        assert any(name.startswith("Optimizer.") for name in names)
        assert not any("tanh" in name for name in names), "the evaluation between steps belongs to none"
    assert nn.Module.__call__.__qualname__ == "Module._wrapped_call_impl", "a wrapper was left behind"


def test_an_optimizer_that_is_used_no_more_is_waited_for_once(make_debugger: Any, records: Any, tmp_path: Path) -> None:
    gc.collect()
    left_over = torch.optim.SGD(network().parameters(), lr=0.1)
    finder = TorchStepFinder(make_debugger(common={"step": [1, 2]}))
    finder.install()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(MOST_STEPS_OF_ONE + 2):
        functional.relu(model(torch.ones(2, 3))).sum().backward()
        optimizer.step()
    finder.uninstall()
    assert left_over.state == {}
    assert sum("linear" in name and "forward" in name for name in records(1)) == 1
    assert sum("linear" in name and "forward" in name for name in records(2)) == 1


def test_gradients_of_every_step_are_those_of_the_optimizer_of_the_model(make_debugger: Any, tmp_path: Path) -> None:
    debugger = make_debugger(level=None, task="grad_probe", grad_level="L1")
    finder = TorchStepFinder(debugger)
    finder.install()
    trained(scheduled)
    finder.uninstall()
    debugger._gradients.stop()
    names = [f"grad_summary_{step}.csv" for step in range(3)]
    assert sorted(path.name for path in (tmp_path / "dump").rglob("*.csv")) == names


SCRIPT = """
import sys
import torch
from helper import width

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)

    def forward(self, x):
        return torch.tanh(self.layer(x))

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    model(torch.ones(2, width)).sum().backward()
    optimizer.step()
    print("step", step, flush=True)
import pickle
assert __name__ == "__main__" and pickle.loads(pickle.dumps(Model()))
sys.exit(3)
"""


def collect(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "helper.py").write_text("width = 3\n")
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "msprobe_collector", "collect", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_script_runs_as_it_does_alone(tmp_path: Path) -> None:
    done = collect(tmp_path, "train.py", "2")
    assert (done.returncode, done.stdout) == (3, "step 0\nstep 1\n")
    assert "step 0 is collected in" in done.stderr
    stacks = (tmp_path / "msprobe_dump" / "step0" / "proc0" / "stack.json").read_text()
    assert f"File {tmp_path / 'train.py'}, line 12, in forward" in stacks
    assert "unedited_scripts" not in stacks


def test_a_module_is_ended_behind_the_last_step(tmp_path: Path) -> None:
    options = ("--exit", "--step=1", "--task=statistics", "--dump-path=here")
    done = collect(tmp_path, *options, "-m", "train", "9")
    assert (done.returncode, done.stdout) == (0, "step 0\n")
    assert (tmp_path / "here" / "step1" / "proc0" / "dump.json").exists()


def test_what_cannot_be_collected_is_said(tmp_path: Path) -> None:
    (tmp_path / "no_module.py").write_text("import torch\ntorch.tanh(torch.ones(2))\n")
    done = collect(tmp_path, "no_module.py")
    assert done.returncode == 1
    assert "nothing was collected: no_module.py called no Module" in done.stderr


def test_the_dump_of_an_earlier_run_is_not_that_of_a_run_that_collects_nothing(tmp_path: Path) -> None:
    assert collect(tmp_path, "train.py", "1").returncode == 3
    root = tmp_path / "msprobe_dump"
    assert empty_run_of(root) is None
    (tmp_path / "broken.py").write_text("import torch\nimport not_there\n")
    done = collect(tmp_path, "broken.py")
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]  # behind the traceback
    assert "ModuleNotFoundError" in line
    year = str(datetime.now(timezone.utc).year)
    assert f"step0/proc0 holds the dump of an earlier run, of {year}" in line
    empty = empty_run_of(root)
    assert empty is not None
    assert (empty.command, empty.earlier) == ("broken.py", root / "step0" / "proc0" / "dump.json")
    assert empty.ended_in is not None
    assert (empty.ended_in.kind, empty.ended_in.place) == ("ModuleNotFoundError", "broken.py:2")
    assert done.stderr.count("nothing was collected") == 1
    assert collect(tmp_path, "train.py", "1").returncode == 3
    assert empty_run_of(root) is None, "the run after it has collected a step"
    (tmp_path / "refused.py").write_text("import sys\nsys.exit(2)\n")  # as of an argument that is not known
    assert collect(tmp_path, "refused.py").returncode == 2
    assert empty_run_of(root) is not None


class Coder(nn.Module):
    """An encoder and a decoder, of which the second alone is called by the model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, code: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.decoder(code))

    @torch.no_grad()
    def generate(self, inputs: torch.Tensor) -> torch.Tensor:
        code = self.encoder(inputs)
        for _ in range(3):
            code = self.encoder(self(code))
        return code


def test_a_script_that_trains_nothing_has_its_first_forward_collected(
    make_debugger: Any, records: Any, tmp_path: Path
) -> None:
    gc.collect()
    torch.manual_seed(0)
    model, inputs = Coder(), torch.randn(2, 3)
    alone = model.generate(inputs)
    finder = TorchStepFinder(make_debugger(level="mix", common={"step": [0]}))
    finder.install()
    assert torch.equal(model.generate(inputs), alone)
    finder.uninstall()
    names = [name for name in records(0) if name.startswith("Functional")]
    assert names == ["Functional.linear.0.forward", "Functional.linear.1.forward", "Functional.gelu.0.forward"]
    assert nn.Module.__call__.__qualname__ == "Module._wrapped_call_impl", "a wrapper was left behind"


def test_the_line_that_put_a_model_into_eval_mode_is_told(make_debugger: Any, tmp_path: Path) -> None:
    gc.collect()
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    finder = TorchStepFinder(make_debugger(level="mix", common={"step": [0, 1]}))
    finder.install()
    for mode in (False, True):
        model.eval()
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        if mode:
            model.train()
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
    finder.uninstall()
    runs = [read_manifest(tmp_path / "dump" / f"step{step}" / "proc0" / "run.json") for step in (0, 1)]
    assert [run.models[0].eval_at for run in runs] == [f"{Path(__file__).name}:{line}", ""]
    assert nn.Module.train.__qualname__ == "Module.train"
    assert not hasattr(nn.Module.train, "__wrapped__")


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_training_behind_an_evaluation_takes_its_place(
    make_debugger: Any, records: Any, tmp_path: Path, is_whole: bool
) -> None:
    gc.collect()
    model, inputs = Coder(), torch.randn(2, 3)
    finder = TorchStepFinder(make_debugger(level="mix", common={"step": [0]}))
    finder.install()
    if is_whole:
        model.generate(inputs)
    else:
        model.encoder(inputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(torch.randn(2, 4))
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    finder.uninstall()
    assert "Optimizer.SGD.0.forward" in records(0)
    assert not any(name.startswith("Module.encoder") for name in records(0))
    manifest = read_manifest(tmp_path / "dump" / "step0" / "proc0" / "run.json")
    assert [one.shape for one in (manifest.batches or ((),))[0]] == [(5, 4)], "the call that began the step has a batch"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["absent.py"], "absent.py is no file"), (["--task=tensors", __file__], "tensors"), ([], "SCRIPT")],
)
def test_wrong_arguments_are_refused_before_the_script_runs(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["collect", *arguments])
    assert refused.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


DEEP = """
import torch
from torch import nn
net = nn.Sequential(*[layer for _ in range(10) for layer in (nn.Linear(64, 64), nn.ReLU())])
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net(torch.randn(128, 64)).square().mean().backward()
optimizer.step()
print("trained")
"""


def test_what_a_step_costs_is_said_from_its_first_layers(tmp_path, monkeypatch, caplog) -> None:
    (tmp_path / "deep.py").write_text(DEEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch._dynamo.eval_frame.cached_backends", {})  # what other tests compiled here
    caplog.set_level("INFO", "msprobe_collector")
    assert main(["collect", "--task=tensor", "--dump-path=dump", "deep.py"]) == 0
    size = sum(file.stat().st_size for file in (tmp_path / "dump").rglob("*.pt"))
    (said,) = re.findall(r"the step holds about \d+ values, ([\d.e-]+) GB, \d+ s", caplog.text)
    assert 0.5 * size < float(said) * 1e9 < 2 * size


def test_a_large_step_is_asked_for_on_a_terminal(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "deep.py").write_text(DEEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch._dynamo.eval_frame.cached_backends", {})  # what other tests compiled here
    monkeypatch.setattr("msprobe_collector.pytorch.unedited_scripts._MANY", 1000)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    command = ["collect", "--task=tensor", "--dump-path=dump", "deep.py"]
    with pytest.raises(SystemExit, match="2"):
        main(command)
    printed = capsys.readouterr()
    assert "trained" not in printed.out
    assert "--yes collects it" in printed.err.splitlines()[-1]
    assert main([*command[:1], "--yes", *command[1:]]) == 0


COMPILED = """
import torch
from torch import nn
from torch._dynamo.utils import counters
net = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Sequential(nn.Linear(4, 4)), nn.ReLU())])
optimizer = torch.optim.SGD(net.parameters(), 0.1)
compiled = torch.compile(net, backend="eager")
update = torch.compile(lambda: optimizer.step(), backend="eager")
for _ in range(3):
    compiled(torch.ones(2, 4)).square().mean().backward()
    update()
print("graphs", counters["stats"]["unique_graphs"])
"""


@pytest.mark.slow
def test_what_a_script_compiles_stays_whole(tmp_path: Path) -> None:
    (tmp_path / "compiled.py").write_text(COMPILED)
    collect = ["-m", "msprobe_collector", "collect", "--task=tensor", "--dump-path=dump"]
    counts = [
        subprocess.run(
            [sys.executable, *before, "compiled.py"], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
        for before in ([], collect, [*collect, "--step=1"])
    ]
    assert counts[0].startswith("graphs ")
    assert counts == [counts[0]] * 3
