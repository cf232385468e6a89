"""Error data: the values of every failing API call, in a folder that is itself a dump, by the collector's writer.

File names are those of the existing tool's `-save_error_data`; the benchmark's stand beside them as `bench_output`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_collector.dump_format import TENSOR_FOLDER, Dtype, dtype_of_array
from msprobe_collector.dump_format.dump import frame_text
from msprobe_collector.dump_format.values import INCOMING, OTHER_GRADIENTS, OUTPUT
from msprobe_collector.dump_format.writing.encoding import (
    EncodeInner,
    RecordText,
    TensorValues,
    ValueEncoder,
    stored_form,
)
from msprobe_collector.dump_format.writing.files import GrowingFile, quoted, write_npy
from msprobe_collector.dump_format.writing.parts import ValueParts
from pytest_msprobe.engines.protocol import Array, NumpyArgument, Output
from pytest_msprobe.evidence import Evidence, EvidenceFolder, dump_folder, file_stem, make_folder, write_file


class Recording:
    """Encodes the values of one call.

    Attributes:
        files: values met so far, by file name, as they are stored.
    """

    def __init__(self, framework: str) -> None:
        """Name tensors and dtypes as the dumps of `framework` do."""
        self._encoder = ValueEncoder(_Arrays(framework), on_unknown=lambda record, value: None)
        self.files: dict[str, Array] = {}

    def encode(self, value: Any, stem: str) -> str:
        """The JSON text of `value`; its arrays go to files called `stem` and the path inside the value."""
        text = _Text(stem, saves=True)
        encoded = self._encoder.encode(value, text, "")
        self.files.update(text.arrays)
        return encoded

    def encode_leaves(self, outputs: Iterable[Output], stem: str) -> str:
        """The JSON text of outputs that are given leaf by leaf."""
        encoded = _nested(outputs)
        # A number at the top is a position; there is nothing else at the top.
        return listed(self.encode(encoded[index], f"{stem}.{index}") for index in sorted(encoded))

    def keep(self, value: Any, stem: str) -> None:
        """Only the file of `value`, if it is an array of numbers."""
        if isinstance(value, np.ndarray) and dtype_of_array(value.dtype) is not None:
            self.files[f"{file_stem(stem)}.npy"] = stored_form(value)

    @property
    def needed_bytes(self) -> int:
        """What the files take."""
        return sum(array.nbytes + 128 for array in self.files.values())


def listed(texts: Iterable[str]) -> str:
    """JSON values as the text of a list."""
    return f"[{', '.join(texts)}]"


class _Text(RecordText):
    """Names files by what every file system takes."""

    def file_name(self, place: str) -> str:
        return file_stem(super().file_name(place))


class _Arrays:
    """The values of a call; see `FrameworkValues`. Nothing changes them, so that frozen is read."""

    tensor_types: tuple[type, ...] = (np.ndarray, NumpyArgument)
    dtype_type: type = Dtype
    file_suffix = ".npy"
    parts = ValueParts(tensor_types, opaque=(Dtype,))
    hidden_lines: tuple[str, ...] = ()

    def __init__(self, framework: str) -> None:
        self._namespace = "torch" if framework == "pytorch" else "mindspore"
        self.dtype_type_name = f"{self._namespace}.dtype"

    def read(self, tensor: Any) -> TensorValues:
        array = tensor.array if isinstance(tensor, NumpyArgument) else tensor
        dtype = dtype_of_array(array.dtype)
        if dtype is None or isinstance(tensor, NumpyArgument):
            return TensorValues(array, array.dtype.name, "numpy.ndarray")
        return TensorValues(array, self.dtype_text(dtype), f"{self._namespace}.Tensor")

    frozen = read

    def pending(self, *, has_sketches: bool) -> None:
        return None

    def dtype_text(self, dtype: Dtype) -> str:
        return dtype.name if self._namespace == "mindspore" else f"torch.{dtype.array_name or dtype.name.lower()}"

    def special(self, value: Any, encode: EncodeInner) -> str | None:
        return None


def _nested(outputs: Iterable[Output]) -> dict[Any, Any]:
    """Leaves put back in their tuples and dicts."""
    root: dict[Any, Any] = {}
    for output in outputs:
        place = root
        for step in output.path[:-1]:
            place = place.setdefault(step, {})
        place[output.path[-1]] = output.value
    return {key: _closed(value) for key, value in root.items()}


def _closed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if all(isinstance(key, int) for key in value):
        return tuple(_closed(value[key]) for key in sorted(value))
    return {key: _closed(item) for key, item in value.items()}


class ErrorData:
    """Writes failing calls into a folder, from every process of a run."""

    def __init__(self, folder: EvidenceFolder, dumps: Sequence[Path]) -> None:
        """A writer into `folder`, with one sub-folder for each of `dumps` when there are several."""
        self._folder = folder
        self._dumps = dumps

    def save(self, evidence: Evidence) -> str:
        """See `EvidenceWriter.save`. A call that fails in both directions is kept direction by direction."""
        place = self._folder.root / dump_folder(evidence.dump.path, self._dumps, evidence.case.constructed)
        make_folder(place / TENSOR_FOLDER)
        records, recording = _records(evidence)
        with self._folder.locked() as state:
            with _grown(_dump_json(place, evidence.dump.framework)) as (_, entries):
                saved = entries & records.keys()
            for name in saved:
                del records[name]
            wanted = {
                name: array
                for name, array in recording.files.items()
                if not (saved and (place / TENSOR_FOLDER / name).exists())
            }
            recording.files = wanted
            if not self._folder.take(state, recording.needed_bytes):
                return "error data: not saved, --msprobe-error-data-limit is used up"
        for name, array in wanted.items():
            write_file(place / TENSOR_FOLDER / name, partial(write_npy, array=array))
        self._enter(place, evidence, records)
        return f"error data: {place / 'dump.json'}"

    def _enter(self, place: Path, evidence: Evidence, records: dict[str, str]) -> None:
        with self._folder.locked() as state, _grown(_dump_json(place, evidence.dump.framework)) as (dump_json, saved):
            for name, record in records.items():
                if name in saved:
                    continue
                dump_json.add(f"{quoted(name)}: {record}")
                if name.endswith(".forward"):
                    state.saved += 1
                    with _grown(GrowingFile(place / "stack.json")) as (stacks, groups):
                        frames = [frame_text(frame) for frame in evidence.dump.stacks.frames(name)]
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
    call, results = evidence.case.call, evidence.results
    recording = Recording(evidence.dump.framework)
    forward = f"{evidence.case.api}.forward"
    fields = {
        "input_args": recording.encode(call.arguments, f"{forward}.input"),
        "input_kwargs": recording.encode(call.keywords, f"{forward}.kwargs"),
    }
    if call.attributes is not None:
        fields["attributes"] = recording.encode(dict(call.attributes), f"{forward}.attributes")
    if results.tested is not None:
        fields["output"] = recording.encode_leaves(results.tested, f"{forward}.output")
    for output in results.bench or ():
        recording.keep(output.value, ".".join((f"{forward}.bench_output", *map(str, output.path))))
    records = {forward: _object(fields)}
    if results.incoming is not None:
        backward = f"{evidence.case.api}.backward"
        records[backward] = _backward(evidence, results.incoming, backward, recording)
    return records, recording


def _backward(evidence: Evidence, incoming: Sequence[Array | None], name: str, recording: Recording) -> str:
    tested, bench = evidence.results.tested_gradients, evidence.results.bench_gradients
    got = [recording.encode(value, f"{name}.input.{index}") for index, value in enumerate(incoming)]
    outgoing: list[str] = []
    others = {}
    for position, entry in enumerate(evidence.entries):
        if isinstance(entry, int):
            outgoing += ["null"] * (entry + 1 - len(outgoing))
        if tested is not None:
            if isinstance(entry, int):
                outgoing[entry] = recording.encode(tested[position], f"{name}.{OUTPUT}.{entry}")
            elif tested[position] is not None:
                others[entry] = recording.encode(tested[position], f"{name}.{OTHER_GRADIENTS}.{entry}")
        if bench is not None:
            recording.keep(bench[position], f"{name}.bench_output.{entry}")
    fields = {INCOMING: listed(got), OUTPUT: listed(outgoing)}
    return _object({**fields, OTHER_GRADIENTS: _object(others)} if others else fields)


def _object(fields: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{quoted(key)}: {text}' for key, text in fields.items())}}}"
