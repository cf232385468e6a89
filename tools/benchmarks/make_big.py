"""Makes a dump of large tensors without their values: 90 API calls, float32 tensors of 2 to 64 MB, some with gradients.

    python -m tools.benchmarks.make_big TARGET_DIR [--rounds 6]

Each round holds the same 15 calls, as a block of a language model has them.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
#: API, shapes of tensors or plain values as arguments, shape of the output, whether gradients are recorded.
CALLS: tuple[tuple[str, tuple[Any, ...], Sequence[int], bool], ...] = (
    ("Mint.add", ((2048, 4096), (2048, 4096)), (2048, 4096), True),
    ("Mint.mul", ((2048, 4096), (4096,)), (2048, 4096), True),
    ("Mint.matmul", ((1024, 1024), (1024, 1024)), (1024, 1024), True),
    ("Mint.bmm", ((16, 512, 64), (16, 64, 512)), (16, 512, 512), True),
    ("MintFunctional.softmax", ((16, 512, 512), -1), (16, 512, 512), True),
    ("MintFunctional.silu", ((2048, 4096),), (2048, 4096), True),
    ("MintFunctional.relu", ((1024, 4096),), (1024, 4096), True),
    ("Mint.tanh", ((4096, 1024),), (4096, 1024), True),
    ("Mint.exp", ((2048, 2048),), (2048, 2048), False),
    ("Mint.sum", ((4096, 4096), -1), (4096,), False),
    ("Mint.square", ((4096, 4096),), (4096, 4096), False),
    ("Mint.rsqrt", ((2048, 512),), (2048, 512), False),
    ("Mint.transpose", ((1024, 2048), 0, 1), (2048, 1024), False),
    ("Mint.sub", ((1024, 512), (1024, 512)), (1024, 512), True),
    ("Mint.sigmoid", ((2048, 1024),), (2048, 1024), True),
)


def tensor(shape: Sequence[int], *, is_positive: bool = False) -> Json:
    """The entry of a float32 tensor as activations are, or of uniform ones from 0.5 to 1."""
    count = 1
    for length in shape:
        count *= length
    low, high, mean, square = (0.5, 1.0, 0.75, 0.5833) if is_positive else (-0.5, 0.5, 0.0, 0.01)
    statistics = {"Max": high, "Min": low, "Mean": mean, "Norm": (count * square) ** 0.5}
    return {"type": "mindspore.Tensor", "dtype": "Float32", "shape": list(shape), **statistics}


def records(rounds: int) -> Json:
    """All forwards, then the backwards in reverse, as a training step would write them."""
    numbers: Counter[str] = Counter()
    forwards, backwards = {}, {}
    for api, given, output, has_gradients in CALLS * rounds:
        name = f"{api}.{numbers[api]}"
        numbers[api] += 1
        arguments = [_argument(value, is_positive=api == "Mint.rsqrt") for value in given]
        forwards[f"{name}.forward"] = {"input_args": arguments, "input_kwargs": {}, "output": [tensor(output)]}
        if has_gradients:
            tensors = [value for value in arguments if isinstance(value, dict) and "shape" in value]
            backwards[f"{name}.backward"] = {"input": [tensor(output)], "output": tensors}
    return forwards | dict(reversed(backwards.items()))


def _argument(value: Any, *, is_positive: bool) -> Any:
    if isinstance(value, tuple):
        return tensor(value, is_positive=is_positive)
    return {"type": "int", "value": value}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, metavar="TARGET_DIR", help="folder to create")
    parser.add_argument("--rounds", type=int, default=6, help="times the 15 calls")
    arguments = parser.parse_args()
    header = {"task": "statistics", "level": "L1", "framework": "mindspore", "dump_data_dir": None}
    arguments.target.mkdir(parents=True)
    path = arguments.target / "dump.json"
    path.write_text(json.dumps({**header, "data": records(arguments.rounds)}, indent=1))
    print(f"{path}: {len(CALLS) * arguments.rounds} API calls")


if __name__ == "__main__":
    main()
