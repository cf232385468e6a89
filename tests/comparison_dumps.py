"""Pairs of dumps for the comparison suite."""

from __future__ import annotations

import json
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_collector.dump_format.sketch_files import SKETCH_FILE, SketchRows
from msprobe_collector.dump_format.sketches import row_of
from msprobe_collector.dump_format.writing.encoding import fingerprint_of

PERTURBED = Path(__file__).parent / "dumps" / "gpt_perturbed" / "dumps.tar.xz"
#: What was multiplied by 1 + 0.02 N(0, 1) in the golden run of the perturbed pair, and who uses it.
TRUE_CAUSE = "Primitive.dense.Dense.4.forward.input.1"


def unpack_perturbed(folder: Path) -> Path:
    """`folder` with `target` and `golden`, each step0/rank0: a real training step, and one with a perturbed weight."""
    with tarfile.open(PERTURBED) as archive:
        archive.extractall(folder, filter="data")
    return folder


def dump_below(folder: Path) -> Path:
    """The only dump.json below `folder`."""
    (found,) = folder.rglob("dump.json")
    return found


def change_tensors(dump: Path, change: Callable[[dict[str, Any], Path], None]) -> None:
    """Apply `change(entry, tensor folder)` to every tensor entry of a dump.json."""
    content = json.loads(dump.read_text(encoding="utf-8"))

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "shape" in value:
                change(value, dump.parent / "dump_tensor_data")
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(content["data"])
    dump.write_text(json.dumps(content), encoding="utf-8")


def make_statistics(dump: Path) -> None:
    """Turn a tensor dump into one that holds statistics only."""
    change_tensors(dump, lambda entry, folder: entry.pop("data_name", None))
    _retask(dump)


def make_md5(dump: Path) -> None:
    """Turn a tensor dump into one that holds CRC-32 checksums of the values."""

    def change(entry: dict[str, Any], folder: Path) -> None:
        values = np.load(folder / entry.pop("data_name"))
        entry["md5"] = f"{zlib.crc32(np.ascontiguousarray(values).tobytes()):08x}"
        for key in ("Max", "Min", "Mean", "Norm"):
            entry.pop(key)

    change_tensors(dump, change)
    _retask(dump)


def make_fingerprints(dump: Path) -> None:
    """Turn a tensor dump into one that holds statistics and fingerprints."""

    def change(entry: dict[str, Any], folder: Path) -> None:
        entry["fingerprint"] = fingerprint_of(np.load(folder / entry.pop("data_name")))

    change_tensors(dump, change)
    _retask(dump)


def make_sketches(dump: Path) -> None:
    """Turn a tensor dump into one that holds statistics and sketches."""
    rows = SketchRows(dump.parent / SKETCH_FILE)
    rows.create()

    def change(entry: dict[str, Any], folder: Path) -> None:
        key = rows.add(row_of(np.load(folder / entry.pop("data_name"))))
        entry |= json.loads(f"{{{key.removeprefix(', ')}}}")

    change_tensors(dump, change)
    rows.close()
    _retask(dump)


def _retask(dump: Path) -> None:
    content = json.loads(dump.read_text(encoding="utf-8"))
    content["task"] = "statistics"
    dump.write_text(json.dumps(content), encoding="utf-8")
    shutil.rmtree(dump.parent / "dump_tensor_data")
