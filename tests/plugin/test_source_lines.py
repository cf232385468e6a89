"""The line that a failure names: the model's, also of an installed package, and the script's behind it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

X = np.random.default_rng(5).standard_normal((8, 8)).astype(np.float32)
PACKAGES = "/opt/env/lib/python3.11/site-packages"
STACK = [
    f"File {PACKAGES}/torch/nn/functional.py, line 9, in linear, \n return linear(input)",
    f"File {PACKAGES}/transformers/models/llama/modeling_llama.py, line 63, in forward, \n q = self.q_proj(x)",
    f"File {PACKAGES}/torch/nn/modules/module.py, line 5, in __call__, \n return forward(x)",
    "File /home/other/project/src/train.py, line 12, in main, \n o = model(**batch)",
]
#: What a plugin that annotates a change reads: the last to see the report.
ANNOTATING = """
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        print(f"\\nannotated {report.location[0]}:{report.location[1] + 1}")
    return report
"""


def wrong_product(folder: Path, name: str = "Torch.mul.0") -> Path:
    builder = DumpBuilder(folder, framework="pytorch").call(name, [X, X], [X])
    builder.stacks[f"{name}.forward"] = STACK
    return builder.write()


@pytest.mark.parametrize("golden", [False, True])
def test_both_lines_are_shown(pytester: pytest.Pytester, golden: bool) -> None:
    arguments = [f"--msprobe-dump={wrong_product(pytester.path / 'd')}", "--msprobe-jsonl=rows.jsonl"]
    if golden:
        DumpBuilder(pytester.path / "g", framework="pytorch").call("Torch.mul.0", [X, X], [X * X]).write()
        arguments += ["--msprobe-golden=g", "--msprobe-suite=comparison", "--msprobe-accounting=off"]
    result = pytester.runpytest(*arguments)
    result.assert_outcomes(failed=1)
    model = f"{PACKAGES}/transformers/models/llama/modeling_llama.py:63, in forward:"
    script = "/home/other/project/src/train.py:12, in main:"
    result.stdout.fnmatch_lines(
        [f"called from {model}", "    q = self.q_proj(x)", f"called from {script}", "    o = model(*batch)"]
    )
    row = json.loads((pytester.path / "rows.jsonl").read_text().splitlines()[-1])
    source = f"{model} q = self.q_proj(x), called from {script} o = model(**batch)"
    assert row["place"]["source"] == source


@pytest.mark.parametrize(
    ("held", "place"),
    [
        ("src/train.py", "src/train.py:12"),
        ("models/llama/modeling_llama.py", "models/llama/modeling_llama.py:63"),
        (None, f"{PACKAGES}/transformers/models/llama/modeling_llama.py:63"),
    ],
)
def test_a_failure_is_annotated_at_the_line_of_the_project(
    pytester: pytest.Pytester, held: str | None, place: str
) -> None:
    if held is not None:
        (pytester.path / held).parent.mkdir(parents=True)
        (pytester.path / held).touch()
    pytester.makeconftest(ANNOTATING)
    result = pytester.runpytest(f"--msprobe-dump={wrong_product(pytester.path / 'd')}", "-s")
    result.stdout.fnmatch_lines([f"annotated {place}"])


def test_without_a_known_line_a_failure_stays_at_its_dump(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(ANNOTATING)
    dump = wrong_product(pytester.path / "d")
    (dump.parent / "stack.json").unlink()
    pytester.runpytest(f"--msprobe-dump={dump}", "-s").stdout.fnmatch_lines(["annotated d/dump.json:1"])
