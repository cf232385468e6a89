"""`python -m msprobe_laws`, and the variable MSPROBE_LAWS: which training is watched, and that it runs as without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe_laws import __main__ as launching
from msprobe_laws.__main__ import frameworks_of

README = Path(__file__).parents[1] / "README.md"
TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    net = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=8, num_workers=0):
        net(x).square().mean().backward()
        optimizer.step()
"""
CHILDREN = """
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
"""
MINDSPORE = """
import sys
import numpy as np
import mindspore as ms
from mindspore import nn, ops
net = nn.Dense(8, 2)
optimizer = nn.SGD(net.trainable_params(), 0.1)
gradients_of = ms.value_and_grad(lambda x: ops.square(net(x)).mean(), None, optimizer.parameters)
for _ in range(3):
    optimizer(gradients_of(ms.Tensor(np.random.randn(4, 8).astype(np.float32)))[1])
assert "torch" not in sys.modules
"""
#: What Python gives a script, and one of three ends.
REPORT = """
import json, sys
spec = getattr(__spec__, "name", None)
kind = sys.modules["__main__"].end.__module__
print(json.dumps([sys.argv, sys.path[0], __file__, __name__, __package__, spec, kind]))
END
"""


def run(*command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MSPROBE_")}
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"]))
    environment |= {"OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def laws_broken_in(folder: Path) -> list[set[str]]:
    """The laws that do not hold, of each rank."""
    files = sorted(folder.glob("rank*/laws.jsonl"))
    rows = [[json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files]
    return [{row["law"] for row in lines if row["kind"] == "finding"} for lines in rows]


def command_of_readme(start: str) -> list[str]:
    line = next(line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(start))
    return line.split()


@pytest.mark.slow
def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    """Workers of a data loader and child processes leave no files."""
    text = TRAINING.replace("num_workers=0", "num_workers=1") + CHILDREN
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    watched = run(*command_of_readme("python -m msprobe_laws train.py"), folder=tmp_path)
    assert watched.returncode == 0, watched.stderr
    assert laws_broken_in(tmp_path / "msprobe_laws") == [{"gradients-are-fresh"}]
    assert watched.stderr.count("msprobe: ") == 2
    assert "train.py:10, in <module>: optimizer.step()" in watched.stderr
    judged = run(*command_of_readme("pytest --msprobe-dump=msprobe_laws"), folder=tmp_path)
    assert judged.returncode == 1, judged.stdout
    assert "gradients-are-fresh" in judged.stdout


@pytest.mark.slow
def test_each_rank_of_torchrun_has_its_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING, encoding="utf-8")
    watched = run("torchrun", "--nproc-per-node=2", "-m", "msprobe_laws", "train.py", folder=tmp_path)
    assert watched.returncode == 0, watched.stderr
    assert laws_broken_in(tmp_path / "msprobe_laws") == [{"gradients-are-fresh"}] * 2


@pytest.mark.slow
@pytest.mark.skipif("mindspore" not in launching.installed_frameworks(), reason="mindspore is not installed")
def test_a_script_of_mindspore_loads_mindspore_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MINDSPORE, encoding="utf-8")
    watched = run("python", "-m", "msprobe_laws", "train.py", folder=tmp_path, MSPROBE_LAWS="laws")
    assert watched.returncode == 0, watched.stderr
    assert "laws were checked in 3 steps: what was compared holds" in watched.stderr
    assert laws_broken_in(tmp_path / "laws") == [set()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["from msprobe_collector.pytorch import PrecisionDebugger", "import msprobe_laws.pytorch"]
)
def test_the_variable_is_heard_where_a_package_of_ours_is_imported(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(line + TRAINING, encoding="utf-8")
    watched = run("python", "train.py", folder=tmp_path, MSPROBE_LAWS="laws", MSPROBE_LAWS_SKIP="gradients-are-fresh")
    assert watched.returncode == 0, watched.stderr
    assert laws_broken_in(tmp_path / "laws") == [set()]


def test_without_the_variable_the_collector_loads_no_extension(tmp_path: Path) -> None:
    names = ("msprobe_laws", "importlib.metadata")
    code = "import sys; before = set(sys.modules); import msprobe_collector.pytorch.framework; " + (
        f"print([name for name in {names} if name in sys.modules and name not in before])"
    )
    done = run("python", "-c", code, folder=tmp_path, MSPROBE_LAWS="0")
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("as_module", [False, True])
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError('of the script')"])
def test_a_script_runs_as_python_runs_it(end: str, as_module: bool, tmp_path: Path) -> None:
    """An empty module in the place of PyTorch: that laws cannot be checked is one line, and ends nothing."""
    (tmp_path / "torch.py").write_text("", encoding="utf-8")
    (tmp_path / "package").mkdir()
    text = "import torch\ndef end(): pass\n" + REPORT.replace("END", end)
    (tmp_path / "package" / "train.py").write_text(text, encoding="utf-8")
    (tmp_path / "package" / "torch.py").write_text("", encoding="utf-8")
    script = ("-m", "package.train") if as_module else ("package/train.py",)
    given = (*script, "--lr", "1", "-h", "--", "-m", "x")
    plain, watched = (run("python", *start, *given, folder=tmp_path) for start in ((), ("-m", "msprobe_laws")))
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout)
    assert "--lr" in plain.stdout
    assert watched.stderr.splitlines()[0].startswith("msprobe: laws of pytorch are not checked: ")
    assert watched.stderr.splitlines()[1:][-1:] == plain.stderr.splitlines()[-1:]


@pytest.mark.parametrize(
    ("files", "names", "frameworks"),
    [
        ({"train.py": "import torch.nn as nn"}, [], {"torch"}),
        ({"train.py": "def main():\n    from mindspore import nn"}, [], {"mindspore"}),
        ({"train.py": "import torch, mindspore"}, [], {"torch", "mindspore"}),
        ({"train.py": "import torch, model", "model.py": "import mindspore"}, [], {"torch"}),
        ({"train.py": "import model", "model.py": "import parts", "parts.py": "import torch"}, [], {"torch"}),
        ({"train.py": "import nets", "nets/inner/gpt.py": "import mindspore"}, [], {"mindspore"}),
        ({"train.py": "import data", "data.py": "", "other.py": "import torch"}, [], set()),
        ({"train.py": "from . import model", "pkg/model.py": "import torch"}, ["pkg"], {"torch"}),
        ({"train.py": "import torch, ("}, [], set()),
        ({"train.py": "torch = 'import torch'"}, [], set()),
    ],
)
def test_frameworks_are_those_that_a_script_imports(
    files: dict[str, str], names: list[str], frameworks: set[str], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert frameworks_of(tmp_path / "train.py", tmp_path, names) == frameworks


@pytest.mark.parametrize(
    ("arguments", "installed", "message"),
    [
        ([], ["torch"], "the following arguments are required: SCRIPT"),
        (["nothing.py"], ["torch"], "there is no script nothing.py"),
        (["-m", "no_package.train"], ["torch"], "there is no module no_package.train"),
        (["-m", "msprobe_laws.nothing"], ["torch"], "there is no module msprobe_laws.nothing"),
        (["--framework", "jax", __file__], ["torch"], "argument --framework: invalid choice: 'jax'"),
        (["--framework", "mindspore", __file__], ["torch"], "mindspore: not installed"),
        ([__file__], [], "torch and mindspore: not installed"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str],
    installed: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launching, "installed_frameworks", lambda: installed)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        launching.main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m msprobe_laws: {message}")
