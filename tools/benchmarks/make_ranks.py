"""Makes a step of many ranks, and its logical run.

    python -m tools.benchmarks.make_ranks FOLDER [--records 3000]

Linear layers, tensor parallel over 8 ranks and data parallel over the others: each layer has a forward, a backward and
the gradient of its weight, with statistics, and the first ones with tensors. Then, in an empty folder,

    pytest --msprobe-dump=FOLDER/ranks --msprobe-logical=FOLDER/logical -q
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_TP, _ROWS, _WIDTH = 8, 16, 16


def values(dp: int, data: int, tp: int | None) -> dict[str, Array]:
    """The values of a layer on the rank at place `tp` among those with part `dp` of `data`; of all for None."""
    chance = np.random.default_rng(0)
    x, weight, gradient = (chance.standard_normal((_ROWS, _WIDTH)) for _ in range(3))
    if tp is None:
        found = {"x": x, "weight": weight, "out": x @ weight.T, "d_out": gradient @ weight.T}
    else:
        rows, columns = slice(dp * _ROWS // data, (dp + 1) * _ROWS // data), slice(tp * 2, tp * 2 + 2)
        x, gradient, weight = x[rows], gradient[rows], weight[columns]
        found = {"x": x, "weight": weight, "out": x @ weight.T, "d_out": gradient @ weight.T}
    found |= {"d_x": found["d_out"] @ weight, "d_weight": found["d_out"].T @ x}
    return {name: value.astype(np.float32) for name, value in found.items()}


def write(folder: Path, found: dict[str, Array], records: int, tensors: int, ranks: dict[str, Any] | None) -> None:
    """The dump of one rank; `ranks` is its header."""
    files = folder / "dump_tensor_data"
    files.mkdir(parents=True)
    header = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": str(files)}
    header |= {"ranks": ranks} if ranks is not None else {}
    data: dict[str, Any] = {}

    def encoded(name: str, record: str, place: str, *, is_real: bool) -> dict[str, Any]:
        value = found[name]
        numbers = (value.max(), value.min(), value.mean(), np.linalg.norm(value))
        entry: dict[str, Any] = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(value.shape)}
        entry |= {key: float(number) for key, number in zip(("Max", "Min", "Mean", "Norm"), numbers)}
        entry["requires_grad"] = False
        if is_real:
            entry["data_name"] = f"{record}.{place}.npy"
            np.save(files / f"{record}.{place}.npy", value)
        return entry

    for layer in range(records // 3):
        name, is_real = f"Module.blocks.{layer}.Linear", layer < tensors
        forward, backward, gradients = (f"{name}.{kind}.0" for kind in ("forward", "backward", "parameters_grad"))
        data[forward] = {
            "input_args": [encoded("x", forward, "input.0", is_real=is_real)],
            "input_kwargs": {},
            "parameters": {"weight": encoded("weight", forward, "parameters.weight", is_real=is_real)},
            "output": [encoded("out", forward, "output.0", is_real=is_real)],
        }
        data[backward] = {
            "input": [encoded("d_out", backward, "input.0", is_real=is_real)],
            "output": [encoded("d_x", backward, "output.0", is_real=is_real)],
        }
        data[gradients] = {"weight": [encoded("d_weight", gradients, "weight", is_real=is_real)]}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64, help="a multiple of 8, at most 128")
    parser.add_argument("--records", type=int, default=3000, help="of each rank")
    parser.add_argument("--tensors", type=int, default=0, help="layers whose tensors are written, too")
    asked = parser.parse_args()
    data = asked.ranks // _TP
    write(asked.folder / "logical/step0/rank0", values(0, 1, None), asked.records, asked.tensors, None)
    for rank in range(asked.ranks):
        dp, tp = divmod(rank, _TP)
        groups = {
            "tp": {"ranks": [dp * _TP + one for one in range(_TP)], "index": tp},
            "dp": {"ranks": [one * _TP + tp for one in range(data)], "index": dp},
        }
        header = {"world_size": asked.ranks, "rank": rank, "groups": groups}
        folder = asked.folder / f"ranks/step0/rank{rank}"
        write(folder, values(dp, data, tp), asked.records, asked.tensors, header)


if __name__ == "__main__":
    main()
