"""Dumps with sketches compared from the command line, and what the diagnosis asks to be collected next."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_dumps import change_tensors
from dump_builder import DumpBuilder
from page_reader import page_content

from pytest_msprobe.__main__ import main

ROOT = Path(__file__).parents[2]
X = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
RUN = ("--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-diagnosis=diagnosis.json")


def write(folder: Path, output: np.ndarray, **how: Any) -> Path:
    """exp of x, which is `output`, and its square."""
    builder = DumpBuilder(
        folder / "step3" / "rank1", **{"real": False, "sketches": True, "framework": "pytorch", **how}
    )
    builder.call("Torch.exp.0", [X], [output]).call("Torch.square.0", [output], [np.square(output)])
    return builder.write()


def diagnosis(pytester: pytest.Pytester) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((pytester.path / "diagnosis.json").read_text(encoding="utf-8"))
    return found


def test_permuted_rows_are_seen(pytester: pytest.Pytester) -> None:
    write(pytester.path / "target", np.exp(X)[::-1].copy())
    write(pytester.path / "golden", np.exp(X))
    result = pytester.runpytest(*RUN, "-v")
    result.assert_outcomes(failed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        ["Torch.exp.0 forward (first difference only): its inputs have equal sketches, and output.0 differs: *"]
    )
    found = diagnosis(pytester)
    assert (found["basis"], [each["place"]["record"] for each in found["findings"]]) == (
        "sketches",
        ["Torch.exp.0.forward"],
    )


def test_what_is_missing_of_sketches_is_no_success(pytester: pytest.Pytester) -> None:
    for side in ("target", "golden"):
        write(pytester.path / side, np.exp(X))
    assert pytester.runpytest(*RUN).ret == pytest.ExitCode.OK
    os.truncate(pytester.path / "golden" / "step3" / "rank1" / "sketches.bin", 2 * 256)
    result = pytester.runpytest(*RUN)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*sketches.bin lacks the sketches of 3 of 4 values*"])
    assert diagnosis(pytester)["basis"] == "statistics"


def test_a_run_that_compared_nothing_is_no_success(pytester: pytest.Pytester) -> None:
    """No statistics, and sketches of another seed."""
    for side in ("target", "golden"):
        path = write(pytester.path / side, np.exp(X))
        change_tensors(path, lambda entry, folder: [entry.pop(key) for key in ("Max", "Min", "Mean", "Norm")])
    sketches = pytester.path / "golden" / "step3" / "rank1" / "sketches.bin"
    sketches.write_bytes(sketches.read_bytes().replace(b"20261124", b"20261125"))
    result = pytester.runpytest(*RUN, "-v")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*sketches with seed 20261125 cannot be used here*", "*: no tensor was compared*"])
    assert "passed" not in result.parseoutcomes()


def test_the_page_and_workers_take_distances_of_sketches(pytester: pytest.Pytester) -> None:
    write(pytester.path / "target", np.exp(X) * np.float32(1.01))
    write(pytester.path / "golden", np.exp(X))
    pytester.runpytest(*RUN, "-n1", "--msprobe-jsonl=rows.jsonl", "--msprobe-page=page.html").assert_outcomes(
        failed=1, xfailed=1
    )
    rows = [json.loads(line) for line in (pytester.path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [row["outputs"] for row in rows if row.get("call") == "Torch.exp.0"]
    assert found[0][-1]["distance"] == pytest.approx(0.01, rel=0.3)
    assert "by the sketches is 0.0" in str(page_content(pytester.path / "page.html"))


def test_next_writes_both_configurations(pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    write(pytester.path / "target", np.exp(X) * np.float32(1.01))
    write(pytester.path / "golden", np.exp(X))
    pytester.runpytest(*RUN)
    capsys.readouterr()
    assert main(["next", "diagnosis.json", "-o", "proof.json"]) == 0
    page = (ROOT / "docs" / "two_runs.md").read_text(encoding="utf-8")
    (printed,) = re.findall(
        rf"```text\n\$ pytest {' '.join(RUN)}\n\$ python -m pytest_msprobe next diagnosis.json -o proof.json\n(.*?)```",
        page,
        re.DOTALL,
    )
    assert capsys.readouterr().out == printed
    for name, side in (("proof.json", "target"), ("proof_golden.json", "golden")):
        assert json.loads((pytester.path / name).read_text(encoding="utf-8")) == {
            "task": "tensor",
            "level": "L1",
            "tensor": {"list": ["Torch.exp.0.forward"]},
            "step": [3],
            "rank": [1],
            "dump_path": f"proof_dumps/{side}",
        }
    assert main(["next", "diagnosis.json", "-o", "proof.json"]) == 2
    assert "proof.json exists and is left as it is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "is not what --msprobe-diagnosis writes"),
        ("[" * 5000, "is not what --msprobe-diagnosis writes"),
        (
            '{"schema": 2, "next_collection": {"calls": [], "target": {"task": "statistics"}}}',
            "is not what --msprobe-diagnosis writes",
        ),
        ('{"schema": 2, "next_collection": null}', "suspects no call whose tensors would tell more"),
        (
            '{"schema": 1, "outcome": "unaccounted", "next_collection": null}',
            "is version 1 of an answer, and only version 2 is read; compare the dumps again with --msprobe-diagnosis",
        ),
        (None, "No such file"),
    ],
)
def test_what_cannot_be_collected_next_is_one_line(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], content: str | None, words: str
) -> None:
    if content is not None:
        (pytester.path / "diagnosis.json").write_text(content, encoding="utf-8")
    assert main(["next", "diagnosis.json"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "diagnosis.json" in error
    assert len(error.splitlines()) == 1
    assert not (pytester.path / "config.json").exists()


TRAINING = """
import sys
import torch
from msprobe_collector.pytorch import PrecisionDebugger

def step(rows, approximate):
    hidden = torch.nn.functional.gelu(torch.matmul(rows, rows.T), approximate=approximate)
    torch.sum(torch.exp(hidden)).backward()

rows = torch.linspace(-1, 1, 48).reshape(6, 8).requires_grad_()
with PrecisionDebugger(sys.argv[1]).collect():
    step(rows, sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_sketches_localise_and_the_tensors_of_the_suspects_prove(pytester: pytest.Pytester) -> None:
    """Both collections are those of the collector, the second one with what the first comparison asks for."""
    for side in ("target", "golden"):
        keys = {"task": "statistics", "level": "L1", "dump_path": side, "statistics": {"summary_mode": "sketch"}}
        (pytester.path / f"{side}.json").write_text(json.dumps(keys))
    train(pytester.path, "target.json", "golden.json")
    pytester.runpytest(*RUN)
    assert [each["place"]["record"] for each in diagnosis(pytester)["findings"]] == ["Functional.gelu.0.forward"]
    assert main(["next", "diagnosis.json"]) == 0
    train(pytester.path, "config.json", "config_golden.json")
    pytester.runpytest(
        *(f"{option.partition('=')[0]}=config_dumps/{option.partition('=')[2]}" for option in RUN[:2]), RUN[2]
    )
    found = diagnosis(pytester)
    assert (found["outcome"], found["basis"]) == ("wrong", "tensors")
    (fault,) = found["findings"]
    assert (fault["place"]["record"], fault["kind"]) == ("Functional.gelu.0.forward", "defined")
    assert "approximate 'tanh' against 'none'" in fault["detail"]
    records = (json.loads(path.read_text())["data"] for path in (pytester.path / "config_dumps").rglob("dump.json"))
    assert [list(names) for names in records] == [["Functional.gelu.0.forward"]] * 2


def train(folder: Path, target: str, golden: str) -> None:
    for config, how in ((target, "tanh"), (golden, "none")):
        subprocess.run([sys.executable, "-c", TRAINING, config, how], cwd=folder, check=True, capture_output=True)
