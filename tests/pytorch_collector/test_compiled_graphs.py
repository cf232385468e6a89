"""What goes into compiled graphs and comes out of them is recorded, and training notices nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compiled_scripts import SCRIPTS
from torch import nn

from pytest_msprobe.__main__ import main

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
TESTS = HERE.parent


def ran(script: Path, folder: Path, *arguments: str, **variables: str) -> list[str]:
    paths = os.pathsep.join([str(TESTS), str(HERE)])
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[str]]]:
    """Folder and output of the scripts without the collector, with it, and with it without the compiler."""
    script = HERE / "compiled_scripts.py"
    folders = {name: tmp_path_factory.mktemp(name) for name in ("bare", "compiled", "eager")}
    return {
        "bare": (folders["bare"], ran(script, folders["bare"], "bare")),
        "compiled": (folders["compiled"], ran(script, folders["compiled"], ".")),
        "eager": (folders["eager"], ran(script, folders["eager"], ".", TORCHDYNAMO_DISABLE="1")),
    }


def test_training_is_bit_identical_and_nothing_is_compiled_anew(runs) -> None:
    assert runs["compiled"][1] == runs["bare"][1]
    assert len(runs["bare"][1]) == len(SCRIPTS) == 12


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("number", [0, 1])  # compiled in this step, and before it
def test_border_values_are_recorded(runs, name: str, number: int) -> None:
    (folder,) = (runs["compiled"][0] / name.replace(" ", "_") / f"step{number}").iterdir()
    records = json.loads((folder / "dump.json").read_text())["data"]
    graphs = [record for record in records if record.startswith("Compiled.")]
    forwards = [record for record in graphs if record.endswith(".forward")]
    assert forwards
    assert "Compiled." + {"decorator": "activate", "loss only": "square_loss"}.get(name, "") in forwards[0]
    for record in forwards:
        given = [value for value in records[record]["input_args"] if value["type"] == "torch.Tensor"]
        assert given
        assert all((folder / "dump_tensor_data" / value["data_name"]).is_file() for value in given)
    backwards = [record for record in graphs if record.endswith(".backward")]
    # The adversary's second network gets no gradient in the first part of the step.
    assert len(backwards) == len(forwards) - (name == "adversaries")
    assert all(any(value for value in records[record]["output"]) for record in backwards)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_compiled_run_is_an_eager_one(runs, name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = f"{name.replace(' ', '_')}/step0"
    main(["diagnose", str(runs["compiled"][0] / folder), str(runs["eager"][0] / folder), "--json=answer.json"])
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert (answer["outcome"], answer["findings"]) == ("right", [])


#: Script, its lines, what stands there instead, and the graph that they are in.
FAULTS = [
    ("aot_eager", "relu(self.norm(self.first(x))))", "relu(self.norm(self.first(x)))) * 1.03", "Network"),
    ("aot_eager", "self.last(torch.relu(self.norm", "self.last(nn.functional.gelu(self.norm", "Network"),
    ("module", "self.norm(self.first(x))", "self.first(x)", "Network"),
    ("inductor", "relu(self.norm(self.first(x))))", "relu(self.norm(self.first(x)))) - self.last.bias", "Network"),
    ("loss only", "(y - 1).square().mean()", "(y - 1).square().sum()", "square_loss"),
    ("loss only", "(y - 1).square().mean()", "(y - 1).pow(4).mean()", "square_loss"),
    ("graph breaks", "self.last(torch.relu(h))", "self.last(torch.relu(h).clamp(max=1.0))", "Broken"),
    (
        "decorator",
        "    return torch.relu(self.norm(h))",
        "    return torch.relu(self.norm(h)).half().float()",
        "activate",
    ),
]


@pytest.mark.parametrize(("name", "right", "wrong", "graph"), FAULTS)
def test_a_wrong_compiled_region_is_named(runs, tmp_path, monkeypatch, name, right, wrong, graph) -> None:
    text = (HERE / "compiled_scripts.py").read_text()
    assert right in text
    (tmp_path / "wrong.py").write_text(text.replace(right, wrong, 1))
    ran(tmp_path / "wrong.py", tmp_path, "dump", name)
    monkeypatch.chdir(tmp_path)
    folder = f"{name.replace(' ', '_')}/step0"
    main(["diagnose", f"dump/{folder}", str(runs["eager"][0] / folder), "--json=answer.json"])
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["outcome"] == "wrong"
    assert answer["findings"][0]["place"]["record"].startswith(f"Compiled.{graph}.")
    assert "wrong.py:" in answer["findings"][0]["place"]["source"]


def test_a_graph_that_is_freed_during_the_step(make_debugger, records) -> None:
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    with make_debugger().collect(model):
        compiled(torch.ones(1, 2))
        torch.compiler.reset()
        compiled(torch.ones(1, 2))
    assert [name for name in records() if name.startswith("Compiled.")] == [
        "Compiled.Linear.0.forward",
        "Compiled.Linear.1.forward",
    ]
    compiled(torch.ones(1, 2))
    scopes = [module for module in map(vars, list(sys.modules.values())) if module is not None]
    graphs = [value for scope in scopes for name, value in list(scope.items()) if name.startswith("__compiled_fn_")]
    assert not any("recording" in getattr(graph, "__qualname__", "") for graph in graphs)
