"""Makes a step of 1,024 ranks with sketches.

    python -m tools.benchmarks.make_large_ranks FOLDER [--data 32]

The shapes of a model of 70B parameters (80 layers, width 8192) with 8 tensor parallel ranks, 4 pipeline stages and
`--data` data parallel ranks, 3,000 records each, and the logical run on one rank with 12,000. Values are outer products
of vectors, whose sketches are products of the vectors' sketches: nothing as large as the shapes is made. 4 MB a rank.
Then, in an empty folder,

    pytest --msprobe-dump=FOLDER/ranks --msprobe-logical=FOLDER/logical -q
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_collector.dump_format.sketches import NUMBERS, SEED, VERSION, Sketch

Array = np.ndarray[Any, Any]
_TP, _STAGES, _LAYERS, _CALLS = 8, 4, 80, 50
_TOKENS, _WIDTH, _WIDE = 4096, 8192, 28672
#: What a call is: class, dimensions along which its input, output and weight are sharded over tensor parallel ranks.
_KINDS = {"Norm": (None, None, None), "Column": (None, 2, 0), "Row": (2, None, 1)}


@dataclass(frozen=True)
class Product:
    """The outer product of vectors."""

    vectors: tuple[Array, ...]

    def part(self, dimension: int | None, index: int, count: int) -> Product:
        """Shard `index` of `count` along a dimension; all of it for None."""
        found = list(self.vectors)
        if dimension is not None:
            found[dimension] = np.split(found[dimension], count)[index]
        return Product(tuple(found))

    def times(self, factor: float) -> Product:
        """All elements times a number."""
        return Product((self.vectors[0] * factor, *self.vectors[1:]))

    def entry(self) -> str:
        """Its form in dump.json, with `%d` for the row of its sketch."""
        ends = np.array([1.0])
        for one in self.vectors:
            ends = np.array([each * end for each in ends for end in (one.max(), one.min())])
        mean = math.prod(float(one.mean()) for one in self.vectors)
        norm = math.prod(float(np.linalg.norm(one)) for one in self.vectors)
        entry: dict[str, Any] = {"type": "torch.Tensor", "dtype": "torch.bfloat16"}
        entry |= {"shape": [len(one) for one in self.vectors], "Max": ends.max(), "Min": ends.min(), "Mean": mean}
        return json.dumps({**entry, "Norm": norm, "requires_grad": False, "sketch": "%d"}).replace('"%d"', "%d")

    def row(self) -> Array:
        """The numbers of its sketch."""
        counters = np.ones(NUMBERS // 2, np.complex128)
        for dimension, one in enumerate(self.vectors):
            shape = [1] * len(self.vectors)
            shape[dimension] = len(one)
            counters = counters * Sketch.of(one.reshape(shape)).counters
        return np.concatenate([counters.real, counters.imag]).astype(np.float32)


def _values(kind: str, data: int) -> dict[str, Product]:
    """The logical values of a call."""
    chance = np.random.default_rng([len(kind), data])
    wide = {"Norm": (_WIDTH, _WIDTH), "Column": (_WIDTH, _WIDE), "Row": (_WIDE, _WIDTH)}[kind]

    def product(*lengths: int) -> Product:
        return Product(tuple(chance.standard_normal(length) + 0.5 for length in lengths))

    weight = (_WIDTH,) if kind == "Norm" else wide[::-1]
    found = {name: product(data, _TOKENS, wide[name in ("out", "d_out")]) for name in ("x", "out", "d_out", "d_x")}
    return found | {"weight": product(*weight), "d_weight": product(*weight)}


def _held(kind: str, data: int, dp: int, tp: int) -> dict[str, Product]:
    """What a rank holds of them: its part of the batch, its shards, its term of the gradient of the weight."""
    before, after, own = _KINDS[kind]
    shares = np.random.default_rng(data).random(data) + 0.5
    found = {}
    for name, value in _values(kind, data).items():
        if name in ("weight", "d_weight"):
            part = value.part(own, tp, _TP)
            found[name] = part if name == "weight" else part.times(float(shares[dp] / shares.sum()))
        else:
            found[name] = value.part(before if name in ("x", "d_x") else after, tp, _TP).part(0, dp, data)
    return found


def write(
    folder: Path,
    held: dict[str, dict[str, Product]],
    layers: Sequence[int],
    ranks: dict[str, Any] | None,
    *,
    is_sketched: bool = True,
) -> None:
    """The dump of one rank; `ranks` is its header."""
    folder.mkdir(parents=True)
    forms, rows = {}, {}
    for kind, values in held.items():
        entry = {name: value.entry() for name, value in values.items()}
        forms[kind] = (
            f'"%s.forward.0": {{"input_args": [{entry["x"]}], "input_kwargs": {{}}, '
            f'"parameters": {{"weight": {entry["weight"]}}}, "output": [{entry["out"]}]}},\n'
            f'"%s.backward.0": {{"input": [{entry["d_out"]}], "output": [{entry["d_x"]}]}},\n'
            f'"%s.parameters_grad.0": {{"weight": [{entry["d_weight"]}]}}'
        )
        rows[kind] = np.stack([values[name].row() for name in ("x", "weight", "out", "d_out", "d_x", "d_weight")])
    data, numbers, kinds = [], [], list(held)
    for place in range(len(layers) * _CALLS):
        kind = kinds[place % _CALLS % len(kinds)]
        name = f"Module.layers.{layers[place // _CALLS]}.c{place % _CALLS:02d}.{kind}"
        at = 6 * place
        data.append(forms[kind] % (name, at, at + 1, at + 2, name, at + 3, at + 4, name, at + 5))
        numbers.append(rows[kind])
    header = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    text = json.dumps({**header, **({"ranks": ranks} if ranks is not None else {})})[:-1]
    records = ",\n".join(data)
    if not is_sketched:
        records = re.sub(r', "sketch": \d+', "", records)
    (folder / "dump.json").write_text(f'{text}, "data": {{\n{records}\n}}}}', encoding="utf-8")
    head = json.dumps({"sketches": VERSION, "numbers": NUMBERS, "seed": SEED}).encode().ljust(4 * NUMBERS)
    if is_sketched:
        (folder / "sketches.bin").write_bytes(head + np.concatenate(numbers).astype("<f4").tobytes())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=int, default=32, help="data parallel ranks, each of 32 ranks: a power of 2")
    parser.add_argument("--layers", type=int, default=_LAYERS, help="a multiple of 4")
    parser.add_argument("--statistics", action="store_true", help="no sketches")
    asked = parser.parse_args()
    how = {"is_sketched": not asked.statistics}
    data, each = asked.data, asked.layers // _STAGES
    whole = {kind: _values(kind, data) for kind in _KINDS}
    write(asked.folder / "logical/step0/rank0", whole, range(asked.layers), None, **how)
    for dp in range(data):
        for tp in range(_TP):
            held = {kind: _held(kind, data, dp, tp) for kind in _KINDS}
            for stage in range(_STAGES):
                rank = (stage * data + dp) * _TP + tp
                places = {
                    "tp": ([(stage * data + dp) * _TP + one for one in range(_TP)], tp),
                    "dp": ([(stage * data + one) * _TP + tp for one in range(data)], dp),
                    "pp": ([(one * data + dp) * _TP + tp for one in range(_STAGES)], stage),
                }
                groups = {name: {"ranks": ranks, "index": index} for name, (ranks, index) in places.items()}
                header = {"world_size": _STAGES * data * _TP, "rank": rank, "groups": groups}
                folder = asked.folder / f"ranks/step0/rank{rank}"
                write(folder, held, range(stage * each, (stage + 1) * each), header, **how)


if __name__ == "__main__":
    main()
