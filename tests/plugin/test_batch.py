"""`--msprobe-batch` on real kernels, held to what the framework itself gives for the same rows."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from documented import code, example
from dump_builder import DumpBuilder

pytestmark = pytest.mark.machine_kernels
X = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((128, 256)).astype(np.float32)


def changes(linear: object) -> dict[str, bool]:
    """Whether rows of a linear layer change, batch by batch."""
    whole = linear(X)  # type: ignore[operator]
    parts = {"alone": [X[:1], X[-1:]], "halved": [X[:8], X[8:]], "doubled": [np.concatenate([X, X])]}
    rights = {"alone": [whole[:1], whole[-1:]], "halved": [whole[:8], whole[8:]], "doubled": [np.tile(whole, (2, 1))]}
    found = {
        name: any(linear(rows).tobytes() != right.tobytes() for rows, right in zip(runs, rights[name]))  # type: ignore[operator]
        for name, runs in parts.items()
    }
    return found | {"reversed": linear(X[::-1].copy()).tobytes() != whole[::-1].tobytes()}  # type: ignore[operator]


def message(pytester: pytest.Pytester, device: str) -> str:
    framework = "pytorch" if device == "torch" else "mindspore"
    builder = DumpBuilder(pytester.path, framework=framework)
    builder.call("Functional.linear.0" if device == "torch" else "MintFunctional.linear.0", [X, WEIGHT], [X @ WEIGHT.T])
    builder.write()
    arguments = ("--msprobe-suite=repeat", "--msprobe-batch", f"--msprobe-device={device}", "--msprobe-repeat-runs=2")
    pytester.runpytest_subprocess("--msprobe-dump=dump.json", *arguments, "--msprobe-diagnosis=diagnosis.json")
    (path,) = pytester.path.glob("repeat_result_*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        (row,) = csv.DictReader(file)
    return row["Message"]


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_linear_of_pytorch(pytester: pytest.Pytester) -> None:
    import torch

    weight = torch.from_numpy(WEIGHT)
    expected = changes(lambda rows: torch.nn.functional.linear(torch.from_numpy(rows), weight).numpy())
    text = message(pytester, "torch")
    assert {name for name in expected if f"{name} (batch of " in text} == {name for name in expected if expected[name]}
    answer = json.loads((pytester.path / "diagnosis.json").read_text(encoding="utf-8"))
    if not any(expected.values()):  # a machine with another library
        assert (answer["outcome"], answer["findings"]) == ("right", [])
        return
    # Another order of the sum for another batch is what a kernel may do.
    assert answer["outcome"] == "wrong"
    (found,) = answer["findings"]
    assert (found["kind"], found["confidence"]) == ("depends on the batch", "possible")
    assert (found["place"]["record"], found["place"]["value"]) == ("Functional.linear.0.forward", "output.0")
    (command,) = (step["arguments"] for step in answer["next"])
    again = pytester.runpytest_subprocess(*command[1:])
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["*rows change with the batch in 1 of 1 result", "Wrong: Functional.linear.0*"])


@pytest.mark.needs("mindspore")
def test_linear_of_mindspore(pytester: pytest.Pytester) -> None:
    import mindspore

    weight = mindspore.Tensor(WEIGHT)
    linear = mindspore.mint.nn.functional.linear
    expected = changes(lambda rows: linear(mindspore.Tensor(rows), weight).asnumpy())
    text = message(pytester, "mindspore:cpu")
    assert {name for name in expected if f"{name} (batch of " in text} == {name for name in expected if expected[name]}


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_the_example_prints_what_the_page_says(pytester: pytest.Pytester) -> None:
    import torch

    (command,) = example("docs/repeat.md", "pytest --msprobe-dump=dump --msprobe-suite=repeat --msprobe-batch")
    pytester.makepyfile(train=code("docs/repeat.md", "import torch"))
    subprocess.run([sys.executable, "train.py"], cwd=pytester.path, check=True, stdout=subprocess.DEVNULL)
    result = pytester.runpytest_subprocess(*command.words[1:])
    torch.manual_seed(0)
    layer, rows = torch.nn.Linear(256, 128), torch.randn(16, 256)
    if torch.equal(layer(rows)[:1], layer(rows[:1])):
        result.stdout.fnmatch_lines(["rows change with the batch in 0 of *"])  # a machine with another library
    else:
        # With other instructions or fewer threads rows also change in larger batches, which ends the line.
        result.stdout.fnmatch_lines([f"{line.replace('[', '[[]')}*" for line in command.output])
