"""Damaged checkpoints of every form: each ends in a report or in one line, in bounded memory, and runs nothing.

`python -m quality.fuzz checkpoints 20000` compares that many with what they were before. The same seeds give the same
files.
"""

from __future__ import annotations

import gc
import io
import shutil
import sys
import tracemalloc
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from msprobe_checkpoints.comparison import compare
from msprobe_checkpoints.folders import read_checkpoint
from msprobe_checkpoints.report import as_json, lines
from msprobe_checkpoints.tensors import File, ReadError
from quality.fuzz.byte_mutations import damaged

#: The checkpoints have 12 kB of elements, and descriptions of a few kB.
_MOST_BYTES = 8 << 20
#: What a hostile pickle would do is seen by Python itself.
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "os.remove", "os.mkdir")


@dataclass
class Outcome:
    """What comparing many checkpoints gave: counts by exit code or refusal, and what was not as it must be."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def state() -> dict[str, torch.Tensor]:
    """The tensors of each checkpoint."""
    random = torch.Generator().manual_seed(0)
    names = ("model.embed", "model.layers.0.q_proj", "model.layers.0.k_proj", "model.layers.0.v_proj")
    tensors = {f"{name}.weight": torch.randn(16, 24, generator=random) for name in names}
    return tensors | {"model.norm.weight": torch.ones(24), "count": torch.tensor(3)}


def write_all(folder: Path) -> dict[str, Path]:
    """Checkpoints of one state in every form, by name."""
    tensors = state()
    made = {name: folder / name for name in ("safetensors", "zip", "legacy", "mindspore", "distributed", "index")}
    save_file(tensors, made["safetensors"])
    torch.save({"model": tensors, "step": 3, "lr": 0.1}, made["zip"])
    torch.save(tensors, made["legacy"], _use_new_zipfile_serialization=False)
    made["mindspore"].write_bytes(mindspore_bytes({name: tensor.numpy() for name, tensor in tensors.items()}))
    dcp.save({"model": tensors, "step": 3}, checkpoint_id=made["distributed"], no_dist=True)
    made["index"].mkdir()
    save_file(tensors, made["index"] / "a.safetensors")
    places = ", ".join(f'"{name}": "a.safetensors"' for name in tensors)
    (made["index"] / "model.safetensors.index.json").write_text(f'{{"weight_map": {{{places}}}}}')
    return made


def mindspore_bytes(tensors: dict[str, np.ndarray]) -> bytes:
    """A checkpoint as mindspore.save_checkpoint writes it."""

    def sized(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2]) + varint(len(content)) + content

    def varint(value: int) -> bytes:
        found = b""
        while value > 0x7F:
            found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
        return found + bytes([value])

    out = b""
    for name, array in tensors.items():
        dims = b"".join(b"\x08" + varint(size) for size in array.shape)
        tensor = dims + sized(2, array.dtype.name.capitalize().encode()) + sized(3, array.tobytes())
        out += sized(1, sized(1, name.encode()) + sized(2, tensor))
    return out


def compare_many(folder: Path, seeds: range) -> Outcome:
    """Damage and compare one checkpoint per seed in `folder`."""
    outcome = Outcome()
    good = write_all(folder)
    donors = [path.read_bytes() for path in good.values() if path.is_file()]
    events: list[str] = []
    watching = [True]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if not watching[0]:
            return
        is_outside = event == "open" and not str(arguments[0]).startswith((str(folder), sys.prefix, sys.base_prefix))
        if event.startswith(_FORBIDDEN) or is_outside:
            events.append(f"{event} {arguments}")

    sys.addaudithook(watch)
    tracemalloc.start()
    try:
        for seed in seeds:
            watching[0] = False
            random = Random(seed)
            name = random.choice(list(good))
            bad = folder / "bad"
            _make(good[name], bad, random, donors)
            watching[0] = True
            _compare_one(bad, good[name], f"seed {seed} ({name})", outcome)
            if events:
                outcome.problems.append(f"seed {seed} ({name}): {events.pop()}")
    finally:
        tracemalloc.stop()
        watching[0] = False
    return outcome


def _make(good: Path, bad: Path, random: Random, donors: list[bytes]) -> None:
    if bad.is_dir():
        shutil.rmtree(bad)
    bad.unlink(missing_ok=True)
    if good.is_dir():
        shutil.copytree(good, bad)
        chosen = random.choice([path for path in sorted(bad.iterdir()) if path.is_file()])
    else:
        shutil.copyfile(good, bad)
        chosen = bad
    content = chosen.read_bytes()
    if content[:4] == b"PK\3\4" and chosen == bad and random.random() < 0.6:
        chosen.write_bytes(_description_changed(content, random, donors))
    else:
        chosen.write_bytes(damaged(content, random, donors))


def _description_changed(content: bytes, random: Random, donors: list[bytes]) -> bytes:
    """The archive with its pickle damaged, every checksum right, and at times compressed."""
    out = io.BytesIO()
    method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", method) as new:
        for name in old.namelist():
            held = old.read(name)
            new.writestr(name, damaged(held, random, donors) if name.endswith("data.pkl") else held)
    return out.getvalue()


def _compare_one(bad: Path, good: Path, label: str, outcome: Outcome) -> None:
    gc.collect(0)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    File.close_all()
    try:
        sides = [(path, read_checkpoint(path)) for path in (bad, good)]
        result = compare(sides[0][1], sides[1][1], lambda done, total: None)
        text = list(lines(result, sides))
        as_json(result, sides)
        outcome.counts[f"exit code {result.exit_code}"] += 1
        unclear = [line for line in text if not line.isprintable()]
        if unclear:
            outcome.problems.append(f"{label}: not printable: {unclear[0][:200]!r}")
    except ReadError as error:
        outcome.counts["refused"] += 1
        if "\n" in str(error) or len(str(error)) > 700:
            outcome.problems.append(f"{label}: not one clear line: {str(error)[:300]!r}")
    except BaseException as error:
        outcome.problems.append(f"{label}: {type(error).__name__}: {str(error)[:200]}")
    peak = tracemalloc.get_traced_memory()[1] - before
    if peak > _MOST_BYTES:
        outcome.problems.append(f"{label}: allocated {peak} bytes")
