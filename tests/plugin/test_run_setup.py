"""What a comparison says before any number: other steps, an earlier step that differs, other settings of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder

X = np.linspace(-1, 2, 12, dtype=np.float32)


def dump(folder: Path, factor: float = 1.0, manifest: Any = None) -> Path:
    builder = DumpBuilder(folder)
    builder.call("Mint.op.0", [X], [X * np.float32(factor)])
    builder.write()
    if manifest is not None:
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        (folder / "run.json").write_text(text)
    return folder


def run_of(step: int, lr: float, **other: Any) -> dict[str, Any]:
    group = {"settings": {"lr": lr}, "parameters": ["w"]}
    parameter = {"name": "w", "dtype": "float32", "shape": [2], "requires_grad": True, "fingerprint": "a", **other}
    return {
        "framework": "pytorch",
        "step": {"number": step},
        "models": [{"class": "Net", "parameters": [parameter], "modules": []}],
        "optimizers": [{"class": "torch.optim.SGD", "groups": [group], "schedulers": [], "state": {}}],
    }


def compared(pytester: pytest.Pytester, target: str, golden: str) -> tuple[list[str], list[str]]:
    """(lines of the terminal, `setup` of the answer)."""
    result = pytester.runpytest(
        f"--msprobe-dump={target}",
        f"--msprobe-golden={golden}",
        "--msprobe-diagnosis=d.json",
        "--msprobe-out=out",
        "-v",
    )
    return result.outlines, json.loads((pytester.path / "d.json").read_text())["setup"]


def test_an_earlier_step_that_differs_is_said_first_without_manifests_too(pytester: pytest.Pytester) -> None:
    for side, factors in (("a", (1.5, 1.5)), ("b", (1.0, 1.0))):
        for step, factor in enumerate(factors):
            dump(pytester.path / side / f"step{step}" / "rank0", factor)
    lines, told = compared(pytester, "a/step1", "b/step1")
    sentence = (
        "step 0 already differs, first in Mint.op.0.forward: compare it: "
        "pytest --msprobe-dump=a/step0 --msprobe-golden=b/step0"
    )
    assert told == [sentence]
    assert any("step 0 already differs" in line for line in lines)


@pytest.mark.parametrize("what", ["equal", "golden side lacks it", "both are compared"])
def test_an_earlier_step_that_is_equal_missing_or_compared_is_not_spoken_of(
    pytester: pytest.Pytester, what: str
) -> None:
    for side, factor in (("a", 1.5), ("b", 1.0)):
        for step in (0, 1):
            if not (what.startswith("golden") and (side, step) == ("b", 0)):
                dump(pytester.path / side / f"step{step}" / "rank0", 1.0 if what == "equal" and step == 0 else factor)
    several = what.startswith("both")
    assert compared(pytester, "a" if several else "a/step1", "b" if several else "b/step1")[1] == []


def test_two_steps_that_are_not_the_same_are_said_to_be(pytester: pytest.Pytester) -> None:
    dump(pytester.path / "a" / "step1" / "rank0")
    dump(pytester.path / "b" / "step0" / "rank0")
    lines, told = compared(pytester, "a", "b")
    assert told == ["step 1, golden step 0: these are not the same step"]
    assert any("these are not the same step" in line for line in lines)
    for side, step in (("a", 1), ("b", 0)):
        (pytester.path / side / f"step{step}" / "rank0" / "run.json").write_text(json.dumps(run_of(step, 0.1)))
    assert compared(pytester, "a", "b")[1] == told


def test_settings_stand_before_other_weights_and_ranks_are_told_together(pytester: pytest.Pytester) -> None:
    for rank in range(3):
        slot = Path("step0") / f"rank{rank}"
        dump(pytester.path / "a" / slot, 1.5, run_of(0, 1e-3, fingerprint="b" if rank == 2 else "a"))
        dump(pytester.path / "b" / slot, 1.0, run_of(0, 1e-4))
    lines, told = compared(pytester, "a", "b")
    assert told == [
        "lr of group 0: 0.001, golden 0.0001",
        "another initial state: 1 parameter of 1 differs: w (rank 2)",
    ]
    begin = next(at for at, line in enumerate(lines) if line.startswith("Wrong: "))
    assert lines[begin + 1].startswith("runs differ: lr of group 0: 0.001, golden 0.0001; another initial state")


@pytest.mark.parametrize("text", ["{", "[]", "\x1b[2J", '{"models": 3}'])
def test_a_damaged_manifest_is_a_line_and_the_comparison_goes_on(pytester: pytest.Pytester, text: str) -> None:
    dump(pytester.path / "a" / "step0" / "rank0", 1.0, text)
    dump(pytester.path / "b" / "step0" / "rank0", 1.0, run_of(0, 0.1))
    lines, told = compared(pytester, "a", "b")
    assert "1 operation matched, 0 only in the target, 0 only in the golden dump" in "\n".join(lines)
    assert len(told) == (0 if text.startswith('{"') else 1)
    assert all("run.json" in sentence and sentence.isprintable() for sentence in told)


def test_dumps_without_a_manifest_are_not_said_to_lack_it(pytester: pytest.Pytester) -> None:
    dump(pytester.path / "a" / "step0" / "rank0", 1.5)
    dump(pytester.path / "b" / "step0" / "rank0", 1.0, run_of(0, 0.1))
    lines, told = compared(pytester, "a", "b")
    assert told == []
    assert not any("run.json" in line or "runs differ" in line for line in lines)
