"""Writes small dumps for tests, in the format of specs that the existing collector's dumps show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_collector.dump_format import dtype_of_array
from msprobe_collector.dump_format.sketch_files import SKETCH_FILE, SketchRows
from msprobe_collector.dump_format.sketches import row_of
from msprobe_collector.dump_format.writing.encoding import fingerprint_of

Json = Any


class DumpBuilder:
    """A dump in `folder`: add API calls, then `write`. Arrays become tensors; with `real`, their values files too, with
    `fingerprints` or `sketches` as the collector writes them."""

    def __init__(
        self,
        folder: Path,
        *,
        real: bool = True,
        framework: str = "mindspore",
        fingerprints: bool = False,
        sketches: bool = False,
    ) -> None:
        self.folder = folder
        self.real = real
        self.fingerprints = fingerprints
        self.header: dict[str, Json] = {
            "task": "tensor" if real else "statistics",
            "level": "L1",
            "framework": framework,
            "dump_data_dir": None,
        }
        self.records: dict[str, Json] = {}
        self.stacks: dict[str, list[str]] = {}
        (folder / "dump_tensor_data").mkdir(parents=True, exist_ok=True)
        self.rows = SketchRows(folder / SKETCH_FILE) if sketches else None
        if self.rows is not None:
            self.rows.create()

    @property
    def path(self) -> Path:
        return self.folder / "dump.json"

    def tensor(self, array: np.ndarray[Any, Any], data_name: str) -> dict[str, Json]:
        """The JSON entry of a tensor, whose values are saved when the dump holds real data."""
        dtype = dtype_of_array(array.dtype)
        assert dtype is not None
        wide = (
            array.astype(np.float64) if dtype.name == "BFloat16" else abs(array) if dtype.kind == "complex" else array
        )
        stats: list[Json] = [None] * 4
        if array.size and array.dtype.kind == "b":
            stats = [bool(array.max()), bool(array.min()), None, None]
        elif array.size:
            with np.errstate(all="ignore"):
                stats = [float(wide.max()), float(wide.min()), float(wide.mean()), float(np.linalg.norm(wide.ravel()))]
        entry = {"type": "mindspore.Tensor", "dtype": dtype.name, "shape": list(array.shape)}
        entry |= dict(zip(("Max", "Min", "Mean", "Norm"), stats))
        if self.fingerprints:
            entry["fingerprint"] = fingerprint_of(array)
        if self.rows is not None:
            row = row_of(array)
            nan, *infinities = row.not_finite
            entry |= {"NaN_count": nan, "Inf_count": sum(infinities)} if any(row.not_finite) else {}
            entry |= json.loads(f"{{{self.rows.add(row).removeprefix(', ')}}}")
        if self.real:
            stored = array.astype(np.float32) if dtype.stored_as == "float32" else array
            np.save(self.folder / "dump_tensor_data" / data_name, stored)
            entry["data_name"] = data_name
        return entry

    def value(self, value: Any, stem: str) -> Json:
        """The JSON form of any argument or output."""
        if value is None or (isinstance(value, dict) and "type" in value):
            return value
        if isinstance(value, np.ndarray):
            return self.tensor(value, f"{stem}.npy")
        if isinstance(value, (list, tuple)):
            return [self.value(item, f"{stem}.{index}") for index, item in enumerate(value)]
        return {"type": type(value).__name__, "value": value}

    def call(
        self,
        name: str,
        arguments: list[Any],
        outputs: list[Any],
        *,
        keywords: dict[str, Any] | None = None,
        incoming: list[Any] | None = None,
        gradients: list[Any] | None = None,
        others: dict[str, Any] | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> DumpBuilder:
        """Add an API call, with a backward when gradients are given; `others` and `attributes` as msprobe_collector."""
        forward = f"{name}.forward"
        self.records[forward] = {
            "input_args": [self.value(item, f"{forward}.input.{i}") for i, item in enumerate(arguments)],
            "input_kwargs": {
                key: self.value(item, f"{forward}.kwargs.{key}") for key, item in (keywords or {}).items()
            },
            "output": [self.value(item, f"{forward}.output.{i}") for i, item in enumerate(outputs)],
        }
        if attributes is not None:
            self.records[forward]["attributes"] = {key: self.value(item, "") for key, item in attributes.items()}
        self.stacks[forward] = [f"File /home/train/net.py, line 7, in construct, \n y = {name}(x)"]
        if incoming is not None:
            backward = f"{name}.backward"
            self.records[backward] = {
                "input": [self.value(item, f"{backward}.input.{i}") for i, item in enumerate(incoming)],
                "output": [self.value(item, f"{backward}.output.{i}") for i, item in enumerate(gradients or [])],
            }
            if others is not None:
                self.records[backward]["other_gradients"] = {
                    path: self.value(item, f"{backward}.other_gradients.{path}") for path, item in others.items()
                }
        return self

    def write(self) -> Path:
        """Write dump.json and stack.json; the path of the dump."""
        if self.rows is not None:
            self.rows.flush()
        self.path.write_text(json.dumps({**self.header, "data": self.records}, indent=1), encoding="utf-8")
        stacks = {str(i): [[name], frames] for i, (name, frames) in enumerate(self.stacks.items())}
        (self.folder / "stack.json").write_text(json.dumps(stacks), encoding="utf-8")
        return self.path
