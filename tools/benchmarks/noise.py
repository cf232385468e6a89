"""Noise runs measured: one step of a GPT, right and wrong, judged with --msprobe-noise and by dtype.

    python -m tools.benchmarks.noise FOLDER

writes the dumps `golden`, `noise`, `sampled` (another noise run), `order` (all products summed in two parts) and `silu`
(one of eight silu wrong) below FOLDER, for float32 and as `golden16`, ... for float16, and prints a line for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tools import ROOT, TESTS

sys.path.insert(0, str(TESTS / "collector"))

RUNS = ("golden", "noise", "sampled", "order", "silu")
#: By suffix: what the network computes in, and by how much the wrong silu is off.
PRECISIONS = {"": ("float32", 1e-4), "16": ("float16", 3e-2)}
_SEEDS = {"noise": 1, "sampled": 7}


def sum_in_two_parts() -> None:
    """Replace matmul and linear by functions that add the products of two parts of the inner dimension."""
    import mindspore.mint.nn.functional as F
    from mindspore import mint

    matmul, linear = mint.matmul, F.linear

    def matmul_in_parts(a: Any, b: Any) -> Any:
        cut = a.shape[-1] // 3
        return mint.add(matmul(a[..., cut:], b[..., cut:, :]), matmul(a[..., :cut], b[..., :cut, :]))

    def linear_in_parts(x: Any, weight: Any, bias: Any = None) -> Any:
        cut = x.shape[-1] // 3
        result = mint.add(linear(x[..., cut:], weight[:, cut:]), linear(x[..., :cut], weight[:, :cut]))
        return result if bias is None else mint.add(result, bias)

    mint.matmul, F.linear = matmul_in_parts, linear_in_parts


def spoil_one_silu(share: float) -> None:
    """Make the fourth silu too large by `share`."""
    import mindspore.mint.nn.functional as F

    silu, calls = F.silu, Counter[str]()

    def spoilt(x: Any) -> Any:
        calls["silu"] += 1
        return silu(x) * (1 + share) if calls["silu"] == 4 else silu(x)

    F.silu = spoilt


def collect(folder: Path, run: str, suffix: str) -> None:
    """Dump one step."""
    import mindspore as ms
    import small_gpt

    from msprobe_collector import PrecisionDebugger

    dtype, share = PRECISIONS[suffix]
    if run == "order":
        sum_in_two_parts()
    elif run == "silu":
        spoil_one_silu(share)
    small_gpt.WIDTH, small_gpt.SEQUENCE = 64, 32
    training = small_gpt.Training(blocks=8)
    if suffix:
        training.net.to_float(getattr(ms, dtype))
    path = folder / f"{run}{suffix}.json"
    content = {"dump_path": str(folder / f"{run}{suffix}"), "statistics": {"summary_mode": "fingerprint"}}
    path.write_text(json.dumps(content))
    debugger = PrecisionDebugger(str(path))
    if run in _SEEDS:
        debugger.perturb(training.net, seed=_SEEDS[run])
    with debugger.collect(training.net, rank_id=0):
        training.step()


def judge(folder: Path, run: str, suffix: str, *, noise: bool) -> str:
    """How many tensors fail, the first of them, and how near the others come to their tolerance."""
    from pytest_msprobe.suites.comparison.operations import DumpComparison
    from pytest_msprobe.suites.comparison.options import ComparisonSettings

    paths = [folder / f"{name}{suffix}" / "step0" / "rank0" / "dump.json" for name in (run, "golden")]
    root = folder / f"noise{suffix}" if noise else None
    comparison = DumpComparison(*paths, ComparisonSettings(noise=root, accept=frozenset({"bits"})))
    values = [value for verdict in comparison.verdicts() for value in verdict.values if value.is_tensor]
    wrong = [value.name for value in values if value.status == "error"]
    shares = [value.distance / value.tolerance.limit for value in values if value.tolerance and value.distance]
    skipped = sum(value.status == "skip" for value in values)
    share = f"; largest share of a tolerance {max(shares):.2f}" if shares else ""
    return f"{len(wrong)} of {len(values)} fail, {skipped} skipped{share}; first {wrong[0] if wrong else 'none'}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--collect", nargs=2, metavar=("RUN", "SUFFIX"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    if arguments.collect:
        collect(folder, *arguments.collect)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, (dtype, _) in PRECISIONS.items():
        for run in RUNS:
            # The silu and the sums of one run must not be those of the next one.
            command = [sys.executable, "-m", "tools.benchmarks.noise", str(folder), "--collect", run, suffix]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for run in RUNS[2:]:
            print(f"{dtype} {run}, by dtype:  {judge(folder, run, suffix, noise=False)}")
            print(f"{dtype} {run}, noise run: {judge(folder, run, suffix, noise=True)}")


if __name__ == "__main__":
    main()
