"""Makes a dump that is bound by computing: large matrix products with their gradients.

    python -m tools.benchmarks.make_matmuls TARGET_DIR [--calls 60] [--size 512]

A forward is 2 * size^3 floating-point operations (512: 268 MFLOP), a backward twice that. Without tensors.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def tensor(size: int) -> Json:
    """The entry of a square float32 matrix with values in -1..1."""
    statistics = {"Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": size * 0.577}
    return {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [size, size], **statistics}


def records(calls: int, size: int) -> Json:
    """`calls` forwards, then their backwards in reverse, as a training step would write them."""
    matrix = tensor(size)
    forward = {"input_args": [matrix, matrix], "input_kwargs": {}, "output": [matrix]}
    backward = {"input": [matrix], "output": [matrix, matrix]}
    forwards = {f"Mint.matmul.{number}.forward": forward for number in range(calls)}
    return forwards | {f"Mint.matmul.{number}.backward": backward for number in reversed(range(calls))}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, metavar="TARGET_DIR", help="folder to create")
    parser.add_argument("--calls", type=int, default=60, help="number of API calls")
    parser.add_argument("--size", type=int, default=512, help="rows and columns of every matrix")
    arguments = parser.parse_args()
    header = {"task": "statistics", "level": "L1", "framework": "mindspore", "dump_data_dir": None}
    arguments.target.mkdir(parents=True)
    path = arguments.target / "dump.json"
    path.write_text(json.dumps({**header, "data": records(arguments.calls, arguments.size)}, indent=1))
    print(f"{path}: {arguments.calls} API calls")


if __name__ == "__main__":
    main()
