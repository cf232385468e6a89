"""Reproducers run alone, in a process that has none of ours, and nothing of a dump becomes code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

RANDOM = np.random.default_rng(11)
A = RANDOM.standard_normal((4, 8)).astype(np.float32)
B = RANDOM.standard_normal((8, 5)).astype(np.float32)
G = RANDOM.standard_normal((4, 5)).astype(np.float32)
BF = A.astype(ml_dtypes.bfloat16)
# Nothing of ours can be imported, nor the packages of our tests and extras.
ALONE = """
import runpy, sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ({blocked}):
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def reproducer(pytester: pytest.Pytester, builder: DumpBuilder, *arguments: str) -> Path:
    result = pytester.runpytest(f"--msprobe-dump={builder.write()}", "--msprobe-reproducers=r", *arguments)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (path,) = (found for found in (pytester.path / "r").glob("*.py") if not found.name.startswith("test_"))
    result.stdout.fnmatch_lines([f"reproducer: {path}", "reproducers: *r (1 API call)"])
    return path


def run_alone(script: Path, *blocked: str, device: str = "CPU") -> str:
    names = ", ".join(map(repr, ("pytest_msprobe", "msprobe_collector", "pytest", "ml_dtypes", "msgspec", *blocked)))
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(blocked=names), str(script), device],
        capture_output=True,
        text=True,
        env=environment,
        cwd=script.parent.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def block(printed: str, title: str) -> str:
    found = [part for part in printed.split("\n\n") if part.lstrip().startswith(title)]
    assert len(found) == 1, printed
    return found[0]


def test_a_script_prints_both_results_and_the_error_in_both_directions(pytester: pytest.Pytester) -> None:
    wrong = (A @ B).copy()
    wrong[2, 3] = 50
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.matmul.0", [A, B], [wrong], incoming=[G], gradients=[G @ B.T, (A.T @ G) * np.float32(1.1)])
    script = reproducer(pytester, builder)
    text = script.read_text()
    assert "    return mint.matmul(x0, x1)\n" in text
    for fact in (
        "x0 Float32 (4, 8), x1 Float32 (8, 5)",
        "called from  /home/train/net.py:7",
        "mindspore 2.",
        "forward ",
    ):
        assert fact in text
    printed = run_alone(script)
    assert f"worst element [2, 3]: 50.0 instead of {float((A.astype(float) @ B)[2, 3].astype(np.float32))}" in block(
        printed, "output.0, recorded"
    )
    assert "cosine 1" in block(printed, "output.0, PyTorch")
    assert "max rel 0.1" in block(printed, "gradient 1, recorded")
    for title in ("gradient 0, of x0, now", "gradient 1, of x1, now", "gradient 1, PyTorch"):
        assert "cosine 1" in block(printed, title)
    assert "max abs" in block(printed, "Now on MindSpore") or "output.0, now" in printed
    assert "PyTorch" not in run_alone(script, "torch")


CALLS: dict[str, tuple[list[Any], list[Any], dict[str, Any], str]] = {
    "Mint.cat.0": ([[BF, BF]], [np.concatenate([BF, -BF])], {"dim": 0}, "mint.cat((x0, x1), dim=0)"),
    "Mint.chunk.0": ([A, 2, 1], [A[:, :4], A[:, 4:] + 1], {}, "mint.chunk(x0, 2, 1)"),
    "Mint.clamp.0": ([A, -1.0, float("inf")], [A - 1], {}, 'mint.clamp(x0, -1.0, float("inf"))'),
    "MintFunctional.softmax.0": ([A], [A], {"dim": -1}, "mint.nn.functional.softmax(x0, dim=-1)"),
    "Functional.relu.0": ([A], [A], {}, "ops.relu(x0)"),
    "Tensor.__getitem__.0": (
        [A, {"type": "slice", "value": [1, None, 2]}],
        [-A[1::2]],
        {},
        "x0.__getitem__(slice(1, None, 2))",
    ),
    "Tensor.to.0": (
        [A, {"type": "mindspore.dtype", "value": "Float16"}],
        [A.astype(np.float16) + 1],
        {},
        "x0.to(ms.float16)",
    ),
    "Tensor.add_.0": ([A, 1.5], [A], {}, "(x0 * 1).add_(1.5)"),
    "Primitive.add.Add.0": ([A, A], [A], {}, "Add()(x0, x1)"),
    "Tensor.numel.0": ([A], [33], {}, "x0.numel()"),
}


@pytest.mark.slow
def test_every_kind_of_call_is_one_readable_line_that_runs(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path)
    for name, (arguments, outputs, keywords, _) in CALLS.items():
        builder.call(name, arguments, outputs, keywords=keywords)
    pytester.runpytest(f"--msprobe-dump={builder.write()}", "--msprobe-reproducers=r").assert_outcomes(
        failed=len(CALLS)
    )
    everything = pytester.path / "r" / "everything.py"
    # One process for all: importing the frameworks takes longer than the calls.
    everything.write_text(
        f"import pathlib, runpy\nfor name in {list(CALLS)!r}:\n    print(f'\\n\\n<{{name}}>')\n"
        "    runpy.run_path(str(pathlib.Path(__file__).with_name(f'{name}.py')))\n"
    )
    printed = run_alone(everything)
    for name, (_, outputs, _, line) in CALLS.items():
        text = (pytester.path / "r" / f"{name}.py").read_text()
        assert f"    return {line}\n" in text
        assert max(map(len, text.splitlines())) <= 120
        own = printed.partition(f"<{name}>")[2].partition("\n\n\n")[0]
        assert f"output.{len(outputs) - 1}, recorded" in own
        now = own.partition(f"output.{len(outputs) - 1}, now")[2]
        assert "cosine 1" in now or "cosine 0.999999" in now, own


def test_a_call_that_raises_on_the_device_raises_in_its_script(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.matmul.0", [A, A], [A])
    script = reproducer(pytester, builder, "--msprobe-device=mindspore:cpu", "--msprobe-error-data=e")
    done = subprocess.run([sys.executable, str(script), "CPU"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "matmul" in done.stderr.lower()
    assert (pytester.path / "e" / "dump_tensor_data" / "Mint.matmul.0.forward.input.1.npy").exists()


EVIL = '"""\nimport os; os.system("touch OWNED")\n"""\\" # coding: rot13 \u202e'


@pytest.mark.slow
def test_no_text_of_a_dump_becomes_code(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.mean.0", [A], [A], keywords={"dim": 0})
    builder.stacks["Mint.mean.0.forward"] = [f"File /x/{EVIL}.py, line 7, in f{EVIL}, \n {EVIL}"]
    text = reproducer(pytester, builder).read_text()
    tree = ast.parse(text)
    assert "os.system" in (ast.get_docstring(tree) or "")
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not any("system" in call for call in calls)
    assert "\u202e" not in text
    run_alone(pytester.path / "r" / "Mint.mean.0.py")
    assert not list(pytester.path.rglob("OWNED"))


def test_a_string_that_the_operator_does_not_take_is_never_passed_to_it(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path, real=False)
    builder.call("MintFunctional.gelu.0", [A], [A], keywords={"approximate": EVIL})
    result = pytester.runpytest(f"--msprobe-dump={builder.write()}", "--msprobe-device=mindspore:cpu")
    result.assert_outcomes(skipped=1)
    message = Reports(pytester.path).results["MintFunctional.gelu.0"]["Message"]
    assert "approximate" in message
    assert "is not passed to gelu, which takes none, tanh" in message
