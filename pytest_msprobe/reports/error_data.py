"""Error data: the values of every failing API call, in a folder that is itself a dump.

File names are those of the existing tool's `-save_error_data`; the benchmark's stand beside them as `bench_output`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from msprobe_collector.dump_format import TENSOR_FOLDER
from pytest_msprobe.reports.evidence import Array, Evidence, Gradients, dump_folder
from pytest_msprobe.reports.evidence_folder import EvidenceFolder, make_folder, write_file
from pytest_msprobe.reports.growing_json import GrowingObject
from pytest_msprobe.reports.recording import Recording, frame_text, stored


class ErrorData:
    """Writes failing calls into a folder, from every process of a run."""

    def __init__(self, folder: EvidenceFolder, dumps: Sequence[Path]) -> None:
        """A writer into `folder`, with one sub-folder for each of `dumps` when there are several."""
        self._folder = folder
        self._dumps = dumps

    def save(self, evidence: Evidence) -> str:
        """See `EvidenceWriter.save`. A call that fails in both directions is kept direction by direction."""
        place = self._folder.root / dump_folder(Path(evidence.dump), self._dumps)
        make_folder(place / TENSOR_FOLDER)
        records, recording = _records(evidence)
        with self._folder.locked() as state:
            known = _dump_json(place, evidence.framework).keys() & records.keys()
            for name in known:
                del records[name]
            wanted = {
                name: array
                for name, array in recording.files.items()
                if not (known and (place / TENSOR_FOLDER / name).exists())
            }
            recording.files = wanted
            if not self._folder.take(state, recording.needed_bytes):
                return "error data: not saved, --msprobe-error-data-limit is used up"
        for name, array in wanted.items():
            write_file(place / TENSOR_FOLDER / name, partial(_write_npy, array))
        self._enter(place, evidence, records)
        return f"error data: {place / 'dump.json'}"

    def _enter(self, place: Path, evidence: Evidence, records: dict[str, Any]) -> None:
        with self._folder.locked() as state:
            dump_json = _dump_json(place, evidence.framework)
            known = dump_json.keys()
            for name, record in records.items():
                if name in known:
                    continue
                dump_json.add(name, record)
                if name.endswith(".forward"):
                    state.saved += 1
                    stacks = GrowingObject(place / "stack.json", "{", "}")
                    stacks.add(str(len(stacks.keys())), [[name], [frame_text(frame) for frame in evidence.frames]])


def _dump_json(place: Path, framework: str) -> GrowingObject:
    header = {
        "task": "tensor",
        "level": "L1",
        "framework": framework,
        "dump_data_dir": str((place / TENSOR_FOLDER).absolute()),
    }
    return GrowingObject(place / "dump.json", f'{json.dumps(header)[:-1]}, "data": {{', "}}")


def _records(evidence: Evidence) -> tuple[dict[str, Any], Recording]:
    recording = Recording(evidence.framework)
    forward = f"{evidence.api}.forward"
    record = {
        "input_args": recording.encode(evidence.arguments, f"{forward}.input"),
        "input_kwargs": recording.encode(evidence.keywords, f"{forward}.kwargs"),
    }
    if evidence.tested is not None:
        record["output"] = recording.encode_leaves(evidence.tested, f"{forward}.output")
    for path, value in evidence.bench or ():
        recording.keep(value, ".".join((f"{forward}.bench_output", *map(str, path))))
    records = {forward: record}
    if evidence.gradients is not None:
        records[f"{evidence.api}.backward"] = _backward(evidence.gradients, f"{evidence.api}.backward", recording)
    return records, recording


def _backward(gradients: Gradients, name: str, recording: Recording) -> dict[str, Any]:
    incoming = [recording.encode(value, f"{name}.input.{index}") for index, value in enumerate(gradients.incoming)]
    places = [entry for entry in gradients.entries if entry is not None]
    outgoing: list[Any] = [None] * (max(places, default=-1) + 1)
    for position, entry in enumerate(gradients.entries):
        label = gradients.label(position)
        if gradients.tested is not None:
            stem = f"{name}.output.{label}"
            if entry is None:
                # The format has no place for gradients of tensors in lists and keywords; their values are kept.
                recording.keep(gradients.tested[position], stem)
            else:
                outgoing[entry] = recording.encode(gradients.tested[position], stem)
        if gradients.bench is not None:
            recording.keep(gradients.bench[position], f"{name}.bench_output.{label}")
    return {"input": incoming, "output": outgoing}


def _write_npy(array: Array, file: BinaryIO) -> None:
    np.save(file, stored(array), allow_pickle=False)
