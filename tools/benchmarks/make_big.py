"""Makes a dump of large tensors without their values: 90 API calls, float32 tensors of 2 to 64 MB, some with gradients.

    python -m tools.benchmarks.make_big TARGET_DIR [--rounds 6]
    python -m tools.benchmarks.make_big TARGET_DIR --tensors

Each round holds the same 15 calls, as a block of a language model has them. With --tensors it holds values, 3.5 GB:
seven rounds of a block of width 1,024 beside one of the large calls; TARGET_DIR/statistics is without values.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tools.benchmarks.make_dump import drop_tensors

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
_WIDTH = (1024,)
_ROWS = (1024, *_WIDTH)
_WIDE = (1024, 4096)
#: What a block of width 1,024 computes, with one convolution of an image model.
BLOCK: tuple[tuple[str, tuple[Any, ...], Sequence[int], bool], ...] = (
    ("Mint.mul", (_ROWS, _WIDTH), _ROWS, True),
    ("MintFunctional.linear", (_ROWS, _ROWS, _WIDTH), _ROWS, True),
    ("Mint.transpose", (_ROWS, 0, 1), _ROWS, True),
    ("Mint.bmm", ((8, 512, 64), (8, 64, 512)), (8, 512, 512), True),
    ("MintFunctional.softmax", ((8, 256, 512), -1), (8, 256, 512), True),
    ("Mint.matmul", ((8, 512, 512), (8, 512, 64)), (8, 512, 64), True),
    ("MintFunctional.linear", (_ROWS, _WIDE[::-1], _WIDE[1:]), _WIDE, True),
    ("Functional.gelu", (_ROWS,), _ROWS, True),
    ("MintFunctional.linear", (_WIDE, _WIDE, _WIDTH), _ROWS, True),
    ("Mint.add", (_ROWS, _ROWS), _ROWS, True),
    ("Functional.log_softmax", (_ROWS, -1), _ROWS, True),
    ("Functional.conv2d", ((8, 16, 64, 64), (32, 16, 3, 3)), (8, 32, 62, 62), True),
)


def tensor(shape: Sequence[int], *, is_positive: bool = False) -> Json:
    """The entry of a float32 tensor as activations are, or of uniform ones from 0.5 to 1."""
    count = 1
    for length in shape:
        count *= length
    low, high, mean, square = (0.5, 1.0, 0.75, 0.5833) if is_positive else (-0.5, 0.5, 0.0, 0.01)
    statistics = {"Max": high, "Min": low, "Mean": mean, "Norm": (count * square) ** 0.5}
    return {"type": "mindspore.Tensor", "dtype": "Float32", "shape": list(shape), **statistics}


def records(calls: Iterable[tuple[str, tuple[Any, ...], Sequence[int], bool]]) -> Json:
    """All forwards, then the backwards in reverse, as a training step would write them."""
    numbers: Counter[str] = Counter()
    forwards, backwards = {}, {}
    for api, given, output, has_gradients in calls:
        name = f"{api}.{numbers[api]}"
        numbers[api] += 1
        arguments = [_argument(value, is_positive=api == "Mint.rsqrt") for value in given]
        forwards[f"{name}.forward"] = {"input_args": arguments, "input_kwargs": {}, "output": [tensor(output)]}
        if has_gradients:
            tensors = [value for value in arguments if isinstance(value, dict) and "shape" in value]
            backwards[f"{name}.backward"] = {"input": [tensor(output)], "output": [dict(entry) for entry in tensors]}
    return forwards | dict(reversed(backwards.items()))


def _argument(value: Any, *, is_positive: bool) -> Any:
    if isinstance(value, tuple):
        return tensor(value, is_positive=is_positive)
    return {"type": "int", "value": value}


def write(folder: Path, task: str, content: Json) -> None:
    """The dump.json of `content` in `folder`."""
    header = {"task": task, "level": "L1", "framework": "mindspore", "dump_data_dir": None}
    path = folder / "dump.json"
    path.write_text(json.dumps({**header, "data": content}, indent=1))
    print(f"{path}: {len(content)} records")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, metavar="TARGET_DIR", help="folder to create")
    parser.add_argument("--rounds", type=int, help="times the 15 calls (6); with --tensors times the block (7)")
    parser.add_argument("--tensors", action="store_true", help="write values, as MindSpore's CPU kernels compute them")
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True)
    if not arguments.tensors:
        write(arguments.target, "statistics", records(CALLS * (arguments.rounds or 6)))
        return
    from tools.benchmarks.big_tensors import write_tensors

    large = ("MintFunctional.softmax", ((8, 1024, 1024), -1), (8, 1024, 1024), True)
    content = records((*CALLS, large, *BLOCK * (arguments.rounds or 7)))
    print(f"{write_tensors(content, arguments.target) / 1e9:.2f} GB")
    write(arguments.target, "tensor", content)
    (arguments.target / "statistics").mkdir()
    write(arguments.target / "statistics", "statistics", drop_tensors(content))


if __name__ == "__main__":
    main()
