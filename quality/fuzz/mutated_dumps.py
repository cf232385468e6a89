"""Small pieces of real dumps, mutated: as values, as bytes, and in their tensor files."""

from __future__ import annotations

import copy
import json
import os
import shutil
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from quality.fuzz.byte_mutations import damaged
from quality.fuzz.json_mutations import mutate, written
from tools import TESTS

DUMPS = TESTS / "dumps"
_SOURCES = (
    "gpt_tiny_tensor/step0/proc0",
    "gpt_tiny_statistics/step0/proc0",
    "overflow_attention/step0/rank0",
    "quickstart",
)
_CALLS = 6


@cache
def _source(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = DUMPS / name
    stack = folder / "stack.json"
    return json.loads((folder / "dump.json").read_text()), json.loads(stack.read_text()) if stack.exists() else {}


def write_dump(folder: Path, seed: int, *, is_mutated: bool = True) -> None:
    """The dump of `seed` in `folder`: a few API calls of a real one. Not mutated, it is what mutations begin with."""
    random = Random(seed)
    name = random.choice(_SOURCES)
    dump, stack = copy.deepcopy(_source(name))
    _cut_to_a_few_calls(dump, random)
    construct: dict[str, Any] = dict.fromkeys(dump["data"], "Cell.net.fc.Dense.forward.0")
    (folder / "dump_tensor_data").mkdir(parents=True)
    files = sorted(_data_names(dump["data"]))
    for file in files:
        shutil.copyfile(DUMPS / name / "dump_tensor_data" / file, folder / "dump_tensor_data" / file)
    texts = {"dump.json": dump, "stack.json": stack, "construct.json": construct}
    random = Random(f"{seed} mutations")
    target = random.choice(("dump.json",) * 6 + ("stack.json", "construct.json", "tensors")) if is_mutated else ""
    for file, document in texts.items():
        if file == target and random.random() < 0.8:
            mutate(document, random)
            content = written(document, random)
        else:
            content = json.dumps(document).encode()
        if file == target and random.random() < 0.3:
            content = damaged(content, random, [content])
        (folder / file).write_bytes(content)
    if target == "tensors" and files:
        _damage_tensors(folder / "dump_tensor_data", files, random)


def write_gradients(folder: Path, seed: int, *, is_mutated: bool = True) -> None:
    """A rank with the gradients of two steps in `folder`; mutated, some of its files are damaged."""
    folder.mkdir(parents=True)
    for step in (0, 1):
        source = DUMPS / "gradients" / "target" / "rank0"
        shutil.copyfile(source / f"grad_summary_{step}.csv", folder / f"grad_summary_{step}.csv")
        shutil.copytree(source / f"step{step}", folder / f"step{step}")
    random = Random(f"{seed} gradients")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in random.sample(files, random.randint(1, 4)) if is_mutated else ():
        content = path.read_bytes()
        if path.suffix == ".csv" and random.random() < 0.6:
            cells = content.decode().split(",")
            cells[random.randrange(len(cells))] = random.choice(_CELLS)
            path.write_bytes(",".join(cells).encode("utf-8", "surrogatepass"))
        else:
            path.write_bytes(damaged(content, random, [content]))


_CELLS = (
    "", "nan", "-inf", "1e999", "9" * 400,
    '"[1000000000000, 1000000000000]"', '"[-1]"', "\x1b[31m", "../../x", "=1+1", '"',
    "\n", "x" * 200_000, "embed.weight", "[" * 5000,
)  # fmt: skip


def _cut_to_a_few_calls(dump: dict[str, Any], random: Random) -> None:
    calls = sorted({name.rpartition(".")[0] for name in dump["data"]})
    kept = set(random.sample(calls, min(_CALLS, len(calls))))
    dump["data"] = {name: record for name, record in dump["data"].items() if name.rpartition(".")[0] in kept}
    first = next(iter(dump["data"].values()))
    dump["data"]["Cell.net.fc.Dense.forward.0"] = copy.deepcopy(first)


def _data_names(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["data_name"]} if isinstance(value.get("data_name"), str) else set()
        return own.union(*map(_data_names, value.values()))
    if isinstance(value, list):
        return set().union(*map(_data_names, value))
    return set()


def _damage_tensors(folder: Path, files: list[str], random: Random) -> None:
    for name in random.sample(files, min(len(files), random.randint(1, 5))):
        path = folder / name
        content = path.read_bytes()
        path.unlink()
        kind = random.randrange(8)
        if kind == 0:
            path.symlink_to("/etc/passwd")
        elif kind == 1:
            os.mkfifo(path)
        elif kind == 2:
            path.mkdir()
        elif kind == 3:
            path.write_bytes(content)
            os.truncate(path, 200_000_000_000)
        elif kind > 4:
            path.write_bytes(damaged(content, random, [content]))
