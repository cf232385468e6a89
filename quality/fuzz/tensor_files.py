"""Damaged and hostile `.npy` and `.pt` files: only DumpError may leave the reader, and memory is bounded.

`python -m quality.fuzz tensors 20000` reads that many. The same seeds give the same files.
"""

from __future__ import annotations

import gc
import io
import os
import pickletools
import tracemalloc
import warnings
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from msprobe_collector.dump_format import DumpError, FieldPath, TensorFolder, TensorValue, find_dtype
from quality.fuzz.byte_mutations import damaged

#: What reading may allocate beside the values: descriptions, headers and directories are bounded, not empty.
FIXED_BYTES = 1 << 20
_PLACE = FieldPath("dump.json", "Mint.add.0.forward", "input_args[0]")
_SPARSE_BYTES = 200_000_000_000


@dataclass(frozen=True)
class Case:
    """A file and the record that names it."""

    content: bytes
    extension: str
    dtype: str
    shape: tuple[int, ...]
    padding: int = 0


@dataclass
class Outcome:
    """What reading many files gave.

    Attributes:
        counts: files by what came of them: `read`, `refused`.
        problems: files that were not read as they must be.
        largest_share: largest allocation over what the shape allows, where that is 1 MiB and more.
    """

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    largest_share: float = 0.0
    largest_fixed: int = 0


def read_many(folder: Path, seeds: range) -> Outcome:
    """Write and read one file per seed in `folder`."""
    outcome = Outcome()
    reader = TensorFolder(folder)
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of headers that look like Python 2
            for seed in seeds:
                _read_one(folder, reader, seed, outcome)
    finally:
        tracemalloc.stop()
    return outcome


def _read_one(folder: Path, reader: TensorFolder, seed: int, outcome: Outcome) -> None:
    case = make_case(seed)
    path = folder / f"x{case.extension}"
    path.write_bytes(case.content)
    if case.padding:
        os.truncate(path, len(case.content) + case.padding)
    value = TensorValue(find_dtype(case.dtype), case.shape, None, None, None, None, path.name)
    allowed = value.size * value.dtype.item_bytes if value.dtype is not None else 0
    gc.collect(0)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        array: Any = reader.load(value, _PLACE)
        outcome.counts["read"] += 1
        if array.shape != case.shape:
            outcome.problems.append(f"seed {seed}: shape {array.shape}, not {case.shape}")
    except DumpError as error:
        outcome.counts["refused"] += 1
        if not str(error).isprintable() or len(str(error)) > 600:
            outcome.problems.append(f"seed {seed}: not one clear line: {str(error)[:300]!r}")
    except BaseException as error:
        outcome.problems.append(f"seed {seed}: {type(error).__name__}: {str(error)[:200]}")
    peak = tracemalloc.get_traced_memory()[1] - before
    if allowed >= FIXED_BYTES and allowed < _SPARSE_BYTES:
        outcome.largest_share = max(outcome.largest_share, peak / allowed)
    else:
        outcome.largest_fixed = max(outcome.largest_fixed, peak - 2 * allowed)
    if peak > 2 * allowed + FIXED_BYTES:
        outcome.problems.append(f"seed {seed}: allocated {peak} bytes for a tensor of {allowed}")
    path.unlink()


def make_case(seed: int) -> Case:
    """The file of `seed`."""
    random = Random(seed)
    return random.choice((_damaged, _damaged, _damaged, _damaged, _npy, _pt_description, _pt_description, _pt_archive))(
        random
    )


def _corpus() -> list[Case]:
    good = []
    for array in (
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4)),
        np.arange(6, dtype=">i8"),
        np.array(2.5),
        np.zeros((0, 3), np.float16),
        np.array([True, False]),
        np.arange(1 << 18, dtype=np.float32),
    ):
        file = io.BytesIO()
        np.save(file, array)
        good.append(Case(file.getvalue(), ".npy", array.dtype.name.capitalize(), array.shape))
    good[2] = Case(good[2].content, ".npy", "Int64", (6,))
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    for tensor in (base, base.t(), base[1:, 2:5], base.bfloat16(), torch.nn.Parameter(base), torch.tensor(2.5)):
        for protocol in (2, 4):
            file = io.BytesIO()
            torch.save(tensor, file, pickle_protocol=protocol)
            name = "BFloat16" if tensor.dtype == torch.bfloat16 else "Float32"
            good.append(Case(file.getvalue(), ".pt", name, tuple(tensor.shape)))
    file = io.BytesIO()
    torch.save(torch.arange(1 << 18, dtype=torch.float32).reshape(512, 512).t(), file)
    good.append(Case(file.getvalue(), ".pt", "Float32", (512, 512)))
    return good


_GOOD = _corpus()
_DONORS = [case.content for case in _GOOD]


def _damaged(random: Random) -> Case:
    case = random.choice(_GOOD)
    content = damaged(case.content, random, _DONORS)
    padding = _SPARSE_BYTES if random.random() < 0.02 else 0
    return Case(content, case.extension, case.dtype, _shape(random, case.shape), padding)


def _shape(random: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Mostly `shape`; at times one that no file holds."""
    if random.random() < 0.9:
        return shape
    return random.choice(((2**47, 2**47), (0, 2**48, 2**48), (1,) * 70, (2**48,), (2**20, 2**20), (), (0,)))


_DESCRIPTIONS = ("<f4", ">f4", "|O", "<U1000000", "|V4", "<M8[s]", [("a", "<f4")], "f4,f4", "<f4" * 500, 7, None, "|b1")


def _npy(random: Random) -> Case:
    shape = _shape(random, (3, 4)) if random.random() < 0.7 else _shape(random, (3, 4)) * random.choice((1, 20, 700))
    written: Any = random.choice((shape, shape, shape, list(shape), -1, (-3, 4), (3.0, 4), ((3,), 4), (10**40, 4)))
    header: dict[Any, Any] = {
        "descr": random.choice(("<f4", "<f4", "<f4", *_DESCRIPTIONS)),
        "fortran_order": random.choice((False, True, False, 0, None, "yes")),
        "shape": written,
    }
    if random.random() < 0.1:
        header[random.choice(("more", 5, ()))] = 1
    text = repr(header)
    if random.random() < 0.1:
        text = random.choice(
            ("[" * 5000, "-" * 9000 + "1", "{" * 300, "(" * 95 + ")" * 95, text.replace("4", "0x" + "f" * 1500))
        )
    encoded = text.encode() + b" " * random.choice((0, 0, 70_000)) + b"\n"
    version = random.choice((1, 1, 1, 2, 3, 4, 255))
    width = 2 if version == 1 else 4
    length = random.choice((len(encoded), len(encoded), len(encoded), 0, (1 << 8 * width) - 1)) & ((1 << 8 * width) - 1)
    content = b"\x93NUMPY" + bytes((version, 0)) + length.to_bytes(width, "little") + encoded
    content += bytes(random.choice((48, 48, 48, 0, 47)))
    padding = _SPARSE_BYTES if random.random() < 0.1 else 0
    return Case(content, ".npy", random.choice(("Float32", "Float32", "BFloat16", "Int64")), shape, padding)


_OPCODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]


def _rewritten(random: Random, case: Case, change: Any) -> bytes:
    """The archive of `case` with its description changed and every checksum right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(case.content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(content) if name.endswith("data.pkl") else content)
    return out.getvalue()


def _pt_description(random: Random) -> Case:
    case = random.choice([case for case in _GOOD if case.extension == ".pt"])

    def change(description: bytes) -> bytes:
        kind = random.randrange(4)
        if kind == 0:
            return damaged(description, random, _DONORS)
        if kind == 1:  # operations in any order
            pieces = [random.choice(_OPCODES) + random.randbytes(random.choice((0, 0, 1, 4))) for _ in range(60)]
            return b"\x80\x02" + b"".join(pieces) + b"."
        at = random.randrange(2, len(description))
        if kind == 2:  # one operation more
            return description[:at] + random.choice(_OPCODES) + description[at:]
        more = random.choice(
            (b"r\xff\xff\xff\x7f", b"\x8b\xff\xff\xff\x7f", b"(" * 60_000, b"N" * 60_000, b"\x85" * 60_000)
        )
        return description[:at] + more + description[at:]

    return Case(_rewritten(random, case, change), ".pt", case.dtype, _shape(random, case.shape))


def _pt_archive(random: Random) -> Case:
    """Members that inflate to gigabytes, very many members, two of one name, comments."""
    case = random.choice([case for case in _GOOD if case.extension == ".pt"])
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(case.content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if random.random() < 0.3:
                content = random.choice((b"", content * 2, bytes(1 << 20), random.randbytes(100)))
            method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
            name = random.choice((name, name, name, name.replace("/", "\\"), f"../{name}", f"{name}\x1b[31m"))
            new.writestr(name, content, method)
        for number in range(random.choice((0, 0, 1, 100, 2000))):
            new.writestr(f"more/{number}", b"")
        new.comment = random.randbytes(random.choice((0, 0, 60_000)))
    content = out.getvalue()
    if random.random() < 0.5:
        content = damaged(content, random, _DONORS)
    padding = _SPARSE_BYTES if random.random() < 0.02 else 0
    return Case(content, ".pt", case.dtype, case.shape, padding)
