"""The pre-check of everything that the trainings of troubles.py do: what is skipped has a name, nothing right fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.machine_kernels

#: What cannot be judged, and why.
GAPS = {
    "functions of PyTorch that no document describes": r"Torch\._\w+: not a known operator",
    "conversions to sparse tensors, and products of them": r"(Tensor\.to_sparse\w*|Torch\.sparse\.mm): not a known op",
    "quantised tensors": r"QuantizedTensor|qint8",
    "calls that raised": r"no outputs of this call",
    "tensors without values: meta, nested, in transforms": r"no values of input|only statistics of this call",
    "x[i] = y, which returns nothing, and its gradient": r"nothing that can be compared|the benchmark leaves open",
    "generators of random numbers": r"random",
}


@pytest.mark.slow
def test_recorded_values_are_right_and_what_is_skipped_has_a_name(tmp_path: Path, pytester: pytest.Pytester) -> None:
    tests = Path(__file__).parents[1]
    script = Path(__file__).with_name("collect_troubles.py")
    environment = {**os.environ, "PYTHONPATH": str(tests)}
    command = [sys.executable, str(script), str(tmp_path / "dumps")]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=500)
    pytester.runpytest_subprocess(
        f"--msprobe-dump={tmp_path / 'dumps'}", "--msprobe-standard=backward-error", "--msprobe-jsonl=rows.jsonl", "-q"
    )
    rows = [json.loads(line) for line in (pytester.path / "rows.jsonl").read_text().splitlines()]
    outcomes = ("passed", "failed", "skipped")
    counts = {outcome: [row for row in rows if row["outcome"] == outcome] for outcome in outcomes}
    assert len(counts["passed"]) > 1800
    assert counts["failed"] == []
    assert sum(map(len, counts.values())) == len(rows)
    unnamed = [row["message"] for row in counts["skipped"] if not re.search("|".join(GAPS.values()), row["message"])]
    assert unnamed == []
    assert len(counts["skipped"]) < 100
