"""Error data: the values of every failing API call, in a folder that is itself a dump.

File names are those of the existing tool's `-save_error_data`; the benchmark's stand beside them as `bench_output`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msprobe_collector.dump_format import TENSOR_FOLDER
from msprobe_collector.dump_format.fields import INCOMING, OTHER_GRADIENTS, OUTPUT
from msprobe_collector.dump_format.stacks import frame_text
from msprobe_collector.dump_format.writing.growing_file import GrowingFile, quoted
from msprobe_collector.dump_format.writing.tensor_files import write_npy
from pytest_msprobe.evidence.evidence import Evidence, Gradients, dump_folder
from pytest_msprobe.evidence.evidence_folder import EvidenceFolder, make_folder, write_file
from pytest_msprobe.evidence.recording import Recording, listed


class ErrorData:
    """Writes failing calls into a folder, from every process of a run."""

    def __init__(self, folder: EvidenceFolder, dumps: Sequence[Path]) -> None:
        """A writer into `folder`, with one sub-folder for each of `dumps` when there are several."""
        self._folder = folder
        self._dumps = dumps

    def save(self, evidence: Evidence) -> str:
        """See `EvidenceWriter.save`. A call that fails in both directions is kept direction by direction."""
        place = self._folder.root / dump_folder(Path(evidence.dump), self._dumps, evidence.edge_case)
        make_folder(place / TENSOR_FOLDER)
        records, recording = _records(evidence)
        with self._folder.locked() as state:
            with _grown(_dump_json(place, evidence.framework)) as (_, entries):
                known = entries & records.keys()
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
            write_file(place / TENSOR_FOLDER / name, partial(write_npy, array=array))
        self._enter(place, evidence, records)
        return f"error data: {place / 'dump.json'}"

    def _enter(self, place: Path, evidence: Evidence, records: dict[str, str]) -> None:
        with self._folder.locked() as state, _grown(_dump_json(place, evidence.framework)) as (dump_json, known):
            for name, record in records.items():
                if name in known:
                    continue
                dump_json.add(f"{quoted(name)}: {record}")
                if name.endswith(".forward"):
                    state.saved += 1
                    with _grown(GrowingFile(place / "stack.json")) as (stacks, groups):
                        frames = [frame_text(frame) for frame in evidence.frames]
                        stacks.add(f'"{len(groups)}": {json.dumps([[name], frames])}')


@contextmanager
def _grown(file: GrowingFile) -> Iterator[tuple[GrowingFile, frozenset[str]]]:
    """(file, keys of its entries), open for more. Its user holds the folder's lock."""
    try:
        yield file, file.reopen()
    finally:
        file.close()


def _dump_json(place: Path, framework: str) -> GrowingFile:
    folder = str((place / TENSOR_FOLDER).absolute())
    head = {"task": "tensor", "level": "L1", "framework": framework, "dump_data_dir": folder}
    return GrowingFile(place / "dump.json", head=head, entries_key="data")


def _records(evidence: Evidence) -> tuple[dict[str, str], Recording]:
    """The records as JSON text, by name, and the recording that holds their files."""
    recording = Recording(evidence.framework)
    forward = f"{evidence.api}.forward"
    fields = {
        "input_args": recording.encode(evidence.arguments, f"{forward}.input"),
        "input_kwargs": recording.encode(evidence.keywords, f"{forward}.kwargs"),
    }
    if evidence.attributes is not None:
        fields["attributes"] = recording.encode(dict(evidence.attributes), f"{forward}.attributes")
    if evidence.tested is not None:
        fields["output"] = recording.encode_leaves(evidence.tested, f"{forward}.output")
    for path, value in evidence.bench or ():
        recording.keep(value, ".".join((f"{forward}.bench_output", *map(str, path))))
    records = {forward: _object(fields)}
    if evidence.gradients is not None:
        records[f"{evidence.api}.backward"] = _backward(evidence.gradients, f"{evidence.api}.backward", recording)
    return records, recording


def _backward(gradients: Gradients, name: str, recording: Recording) -> str:
    incoming = (recording.encode(value, f"{name}.input.{index}") for index, value in enumerate(gradients.incoming))
    places = [entry for entry in gradients.entries if isinstance(entry, int)]
    outgoing = ["null"] * (max(places, default=-1) + 1)
    others = {}
    for position, entry in enumerate(gradients.entries):
        label = gradients.label(position)
        if gradients.tested is not None:
            if isinstance(entry, int):
                outgoing[entry] = recording.encode(gradients.tested[position], f"{name}.{OUTPUT}.{label}")
            elif gradients.tested[position] is not None:
                others[entry] = recording.encode(gradients.tested[position], f"{name}.{OTHER_GRADIENTS}.{label}")
        if gradients.bench is not None:
            recording.keep(gradients.bench[position], f"{name}.bench_output.{label}")
    fields = {INCOMING: listed(incoming), OUTPUT: listed(outgoing)}
    return _object({**fields, OTHER_GRADIENTS: _object(others)} if others else fields)


def _object(fields: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{quoted(key)}: {text}' for key, text in fields.items())}}}"
