"""Makes machine rows of a run that never was, for the page.

    python -m tools.benchmarks.make_rows 10000 rows.jsonl
    python -m pytest_msprobe page rows.jsonl -o page.html

A model of 32 layers, each with the same calls, forward and then backward, on any number of ranks. Layer 20 has a wrong
`Mint.rsqrt`; one call in 500 is not judged.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pytest_msprobe.reports.jsonl import JsonLines
from pytest_msprobe.verdicts import EXPLAINED, OUTCOMES, Outcome, OutputRow, Status, StepPosition, VerdictRow

LAYERS = 32
WRONG_LAYER = 20
#: Cell, class, calls in it.
CALLS = (
    ("n1", "RMSNorm", ("Mint.square", "Mint.mean", "Mint.add", "Mint.rsqrt", "Mint.mul", "Mint.mul")),
    ("a.qkv", "Linear", ("Primitive.dense.Dense",)),
    ("a", "Attention", ("Mint.chunk", "Mint.reshape", "Mint.transpose", "Mint.matmul", "Tensor.__truediv__")),
    ("a", "Attention", ("MintFunctional.softmax", "Mint.matmul", "Mint.transpose", "Mint.reshape")),
    ("a.out", "Linear", ("Primitive.dense.Dense",)),
    ("n2", "RMSNorm", ("Mint.square", "Mint.mean", "Mint.add", "Mint.rsqrt", "Mint.mul", "Mint.mul")),
    ("f.up", "Linear", ("Primitive.dense.Dense",)),
    ("f", "FeedForward", ("MintFunctional.silu", "Mint.mul")),
    ("f.down", "Linear", ("Primitive.dense.Dense",)),
    ("", "Block", ("Mint.add",)),
)


def calls() -> list[tuple[str, tuple[str, ...]]]:
    """(API, Cells) of one pass over the layers."""
    found = []
    for layer in range(LAYERS):
        block = f"layers.{layer}"
        for cell, kind, apis in CALLS:
            outer = ["model.GPT", f"{block}.Block"]
            words = cell.split(".") if cell else []
            if len(words) > 1:
                outer.append(f"{block}.{words[0]}.{'Attention' if words[0] == 'a' else 'FeedForward'}")
            if words:
                outer.append(f"{block}.{cell}.{kind}")
            found += [(api, tuple(outer)) for api in apis]
    return found


def rows(count: int, ranks: int, seed: int = 1) -> Iterator[VerdictRow]:
    """`count` rows in all, as many of each rank."""
    chance = random.Random(seed)
    once = calls()
    for rank in range(ranks):
        numbers: dict[str, int] = {}
        half = count // ranks // 2
        forward = []
        for place in range(half):
            api, cells = once[place % len(once)]
            number = numbers[api] = numbers.get(api, -1) + 1
            forward.append((f"{api}.{number}", cells))
        ordered = [*((call, cells, "forward") for call, cells in forward)]
        ordered += [(call, cells, "backward") for call, cells in reversed(forward)]
        for order, (call, cells, part) in enumerate(ordered):
            yield row(chance, call, cells, part, order, rank)


def row(chance: random.Random, call: str, cells: tuple[str, ...], part: str, order: int, rank: int) -> VerdictRow:
    is_wrong = call.startswith("Mint.rsqrt") and f".{WRONG_LAYER}." in cells[1] + "."
    is_explained = call.startswith("Mint.matmul") and chance.random() < 0.02
    status: Status = "error" if is_wrong or is_explained else "skip" if chance.random() < 0.002 else "pass"
    ratio = (
        chance.uniform(20, 900) if is_wrong else chance.uniform(1, 3) if is_explained else 10 ** chance.uniform(-5, 0)
    )
    dump = f"/data/run/step0/rank{rank}/dump.json"
    output = OutputRow(
        label="output.0" if part == "forward" else "grad.0",
        bench_dtype="Float64",
        tested_dtype="BFloat16" if "Dense" in call or "matmul" in call else "Float32",
        shape=(4, 4096, 1024),
        status=status,
        message="Max absolute error is too large." if status == "error" else "",
        standard="default",
        figures={
            "cosine": 1 - ratio * 1e-6,
            "max_abs": ratio * 1e-4,
            "ratio": ratio,
            "max_rel": ratio * chance.uniform(1e-4, 1e-2),
            "max_ulp": ratio * 3,
        },
        rounding=EXPLAINED if is_explained else "",
        pattern="2 x too large, columns 992 to 1023" if is_wrong else "",
    )
    return VerdictRow(
        node_id=f"{dump}::{call}::{part}",
        dump=dump,
        call=call,
        part=part,
        recorded=("forward", "backward"),
        selected=("forward", "backward"),
        status=status,
        outcome=OUTCOMES[status],
        message="no benchmark implements it" if status == "skip" else "",
        device="mindspore Ascend",
        bench="torch CPU float64",
        outputs=() if status == "skip" else (output,),
        seconds=0.012,
        suite="precheck",
        place=StepPosition(
            order=order,
            cells=cells,
            rank=rank,
            step=0,
            source=f"/home/train/model.py:{40 + len(cells)}, in construct: x = self.{cells[-1]}(x)",
        ),
        explanation=f"{call}: the output is off by {ratio:.3g} times its tolerance\n" * 4 if status == "error" else "",
    )


def compared(found: VerdictRow, chance: random.Random) -> VerdictRow:
    """The row as one of a comparison that accounts for differences: behind the wrong layer everything inherits."""
    assert found.place is not None
    layer = int(found.place.cells[1].split(".")[1])
    is_wrong = found.status == "error" and not found.rounding
    is_behind = not is_wrong and layer >= WRONG_LAYER and found.status != "skip"
    born = chance.uniform(0.7, 1) if is_wrong else chance.uniform(0, 0.02) if is_behind else 1.0
    ratio = chance.uniform(2, 900) if is_wrong or is_behind else 10 ** chance.uniform(-5, 0)
    figures = {"distance": 1e-3, "cosine": 0.9999, "max_abs": 1e-4, "max_rel": 1e-2, "ratio": ratio}
    figures |= {"born": round(born, 4), "inherited": round(1 - born, 4), "defined": 0.0}
    status: Status = "error" if is_wrong or is_behind else found.status if found.status == "skip" else "pass"
    outputs = tuple(replace(output, status=status, figures=figures, rounding="") for output in found.outputs)
    place = replace(found.place, partner=f"{found.call}.{found.part}", partner_cells=found.place.cells)
    outcome: Outcome = "xfailed" if is_behind else OUTCOMES[status]
    return replace(found, suite="comparison", status=status, outcome=outcome, outputs=outputs, place=place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--comparison", action="store_true", help="rows of a comparison that accounts for differences")
    arguments = parser.parse_args()
    lines, chance = JsonLines(arguments.file), random.Random(2)
    for found in rows(arguments.count, arguments.ranks):
        lines.write(found.call, compared(found, chance) if arguments.comparison else found)
    lines.close()


if __name__ == "__main__":
    main()
