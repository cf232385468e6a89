"""Checkpoints of several files: with an index, from torch.distributed.checkpoint, or simply together in a folder.

Sources: HuggingFace Hub's `*.index.json`, and torch/distributed/checkpoint: `.metadata` is a pickle of `Metadata`,
whose `storage_data` says which bytes of which file hold each chunk.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

from msprobe_checkpoints.files import (
    Contents,
    is_inside,
    parsed_json,
    read_file,
    read_safetensors,
    read_torch_zip,
    refused,
)
from msprobe_checkpoints.pickles import Made, read_objects
from msprobe_checkpoints.tensors import File, Joined, Piece, ReadError, Span, Tensor
from msprobe_collector.dump_format.pytorch_files import DescriptionError
from msprobe_collector.dump_format.values import Dtype, abbreviated

_METADATA = ".metadata"
_INDEX = ".index.json"
#: Names of files of weights, without which a folder holds no checkpoint.
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".ckp")
#: Files of these names in folders are no weights.
_OTHERS = ("training_args.bin",)
_MOST_INDEX_BYTES = 1 << 28


def read_checkpoint(path: Path) -> Contents:
    """What the checkpoint at `path` holds: a file, an index or a folder.

    Raises:
        ReadError: nothing of it can be read; the text names the file.
    """
    if path.is_dir():
        return _read_folder(path)
    if path.name.endswith(_INDEX):
        return _named(path, lambda: _read_index(path))
    if path.name == _METADATA:
        return _named(path, lambda: _read_distributed(path.parent))
    return _named(path, lambda: _read(path))


def _named(path: Path, read: Any) -> Contents:
    try:
        contents: Contents = read()
    except ReadError as error:
        raise ReadError(f"{path}: {error}") from None
    return contents


def _read_inside(folder: Path, path: Path) -> Contents:
    _check_link(folder, path)
    return _read(path)


def _read(path: Path) -> Contents:
    contents = read_file(path)
    contents.problems = [f"{path}: {problem}" for problem in contents.problems]
    return contents


def _read_folder(folder: Path) -> Contents:
    if (folder / _METADATA).exists():
        return _named(folder / _METADATA, lambda: _read_distributed(folder))
    indices = sorted(path for path in folder.iterdir() if path.name.endswith(_INDEX))
    if indices:
        # A folder with the same weights twice, in both formats, has two: the safer one is read.
        chosen = next((path for path in indices if "safetensors" in path.name), indices[0])
        return _named(chosen, lambda: _read_index(chosen))
    files = [path for path in _walk(folder) if path.suffix in _SUFFIXES and path.name not in _OTHERS]
    nested = [path for path in _walk(folder) if path.name == _METADATA]
    if not files and len(nested) == 1:
        return _named(nested[0], lambda: _read_distributed(nested[0].parent))
    if not files:
        raise ReadError(f"{folder}: holds no checkpoint: no {', '.join(_SUFFIXES)}, *{_INDEX} or {_METADATA}")
    weights = [path for path in files if path.name in ("model.safetensors", "pytorch_model.bin")]
    if len(weights) == 2 and weights[0].parent == weights[1].parent:
        files = [path for path in files if path.name != "pytorch_model.bin"]
    return _joined(folder, files)


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names))


def _joined(folder: Path, files: list[Path]) -> Contents:
    """The files of a folder together; names that several hold get the name of the file in front."""
    read: list[tuple[Path, Contents]] = []
    problems: list[str] = []
    for path in files:
        try:
            read.append((path, _read_inside(folder, path)))
        except ReadError as error:
            problems.append(f"{path}: {error}")
    if not read:
        raise ReadError(problems[0])
    forms = list(dict.fromkeys(contents.form for _, contents in read))
    whole = Contents(" and ".join(forms), problems=problems, files=len(files))
    whole.holds_entries = any(contents.holds_entries for _, contents in read)
    held = Counter(chain.from_iterable(contents.tensors for _, contents in read))
    for path, contents in read:
        stem = path.relative_to(folder).with_suffix("").as_posix().replace("/", ".")
        whole.problems += contents.problems
        for name, tensor in contents.tensors.items():
            shown = name if held[name] == 1 else f"{stem}.{name}"
            whole.tensors[shown] = tensor
            if held[name] > 1:
                whole.several[shown] = name
        for name, value in contents.entries.items():
            whole.entries[name if len(read) == 1 else f"{stem}.{name}"] = value
    return whole


def _check_link(folder: Path, path: Path) -> None:
    """Raises ReadError for a link that leads out of the folder; one into the blobs of HuggingFace's cache may."""
    real = Path(os.path.realpath(path))
    home = Path(os.path.realpath(folder))
    if not real.is_relative_to(home) and real.parent != home.parent.parent / "blobs":
        raise ReadError(f"is a link to {abbreviated(str(real))}, outside the checkpoint; name that file itself")


def _read_index(path: Path) -> Contents:
    file = File(path)
    if file.size > _MOST_INDEX_BYTES:
        raise ReadError(f"has {file.size} bytes")
    try:
        index, twice = parsed_json(file.read(0, file.size))
        weight_map = index["weight_map"]
        places = [(str(name), str(part)) for name, part in weight_map.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ReadError("is not an index: it has no weight_map") from None
    whole = Contents("", files=0, problems=[f"{path}: {abbreviated(name)} stands twice in it" for name in twice])
    parts: dict[str, Contents | None] = {}
    for part in dict.fromkeys(part for _, part in places):
        parts[part] = _indexed_file(path, part, whole)
    forms = [contents.form for contents in parts.values() if contents is not None]
    if not forms:
        raise ReadError(whole.problems[0].removeprefix(f"{path}: ") if whole.problems else "names no file")
    whole.form, whole.files = forms[0], len(forms)
    whole.holds_entries = any(contents is not None and contents.holds_entries for contents in parts.values())
    for name, part in places:
        contents = parts[part]
        if contents is not None:
            tensor = contents.tensors.get(name)
            if tensor is not None:
                whole.tensors[name] = tensor
            else:
                whole.problems.append(f"{path}: {abbreviated(name)} is not in {abbreviated(part)}")
    for part, contents in parts.items():
        names = contents.tensors if contents is not None else ()
        unlisted = [name for name in names if name not in weight_map]
        if unlisted:
            more = f" and {len(unlisted) - 1} more" if unlisted[1:] else ""
            whole.problems.append(f"{path}: does not list {abbreviated(unlisted[0])}{more} of {abbreviated(part)}")
    return whole


def _indexed_file(index: Path, part: str, whole: Contents) -> Contents | None:
    """A file that an index names; None, and a problem, where it cannot be read."""
    if not is_inside(part):
        whole.problems.append(f"{index}: {refused(part)}")
        return None
    path = index.parent / part
    try:
        contents = _read_inside(index.parent, path)
    except ReadError as error:
        whole.problems.append(f"{path}: {error}")
        return None
    whole.problems += contents.problems
    whole.entries.update(contents.entries)
    return contents


def _read_distributed(folder: Path) -> Contents:
    """A folder of torch.distributed.checkpoint."""
    file = File(folder / _METADATA)
    try:
        metadata = read_objects(io.BytesIO(file.read(0, file.size)))
    except DescriptionError as error:
        raise ReadError(str(error)) from None
    described, stored = _field(metadata, "state_dict_metadata"), _field(metadata, "storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise ReadError("is no .metadata of torch.distributed.checkpoint")
    contents = Contents("torch.distributed.checkpoint", files=0)
    places = _StoragePlaces(folder, stored, contents)
    for name, description in described.items():
        size = _field(description, "size")
        try:
            if size is None:
                _add_entry(contents, str(name), places)
            else:
                contents.tensors[str(name)] = _put_together(description, str(name), places)
        except ReadError as error:
            contents.problems.append(f"{folder}: {abbreviated(str(name))}: {error}")
    contents.files = len(places.files)
    for path in sorted(folder.glob("*.pt")):  # Megatron keeps arguments and the step in common.pt
        try:
            beside = _read_inside(folder, path)
        except ReadError as error:
            contents.problems.append(f"{path}: {error}")
            continue
        for name, tensor in beside.tensors.items():
            contents.tensors.setdefault(name, tensor)
        contents.entries.update(beside.entries)
        contents.problems += beside.problems
    if not contents.tensors and not contents.entries and contents.problems:
        raise ReadError(contents.problems[0].removeprefix(f"{folder}: "))
    return contents


def _field(value: object, name: str) -> object:
    return value.state.get(name) if isinstance(value, Made) and isinstance(value.state, dict) else None


class _StoragePlaces:
    """Where the files of a folder hold what its metadata describes."""

    def __init__(self, folder: Path, stored: dict[object, object], contents: Contents) -> None:
        """The places of the dictionary `storage_data`; what is wrong with it is added to `contents`."""
        self._folder = folder
        self.files: dict[str, File] = {}
        self._places: dict[tuple[str, tuple[int, ...] | None], object] = {}
        for key, value in stored.items():
            name, offset = _field(key, "fqn"), _field(key, "offset")
            self._places[str(name), offset if isinstance(offset, tuple) else None] = value
        if len(self._places) < len(stored):
            contents.problems.append(f"{folder}: storage_data names {len(stored) - len(self._places)} places twice")

    def archive(self, name: str, offset: tuple[int, ...] | None) -> Contents:
        """What the file holds at the place of a tensor's chunk, or of another value.

        Raises:
            ReadError: it is damaged or cut off.
        """
        described = self._places.get((name, offset))
        if described is None and offset is not None and not any(offset):
            described = self._places.get((name, None))
        relative, start, length = (_field(described, key) for key in ("relative_path", "offset", "length"))
        if not isinstance(relative, str) or not isinstance(start, int) or not isinstance(length, int):
            raise ReadError(f"no file has {f'its part at {offset}' if offset else 'it'}")
        if _field(described, "transform_descriptors"):
            raise ReadError("was compressed or encrypted by an extension; save it without")
        if not is_inside(relative):
            raise ReadError(refused(relative))
        if relative not in self.files:
            _check_link(self._folder, self._folder / relative)
            try:
                self.files[relative] = File(self._folder / relative)
            except ReadError as error:
                raise ReadError(f"{relative} {error}") from None
        file = self.files[relative]
        if not 0 <= start <= start + length <= file.size:
            raise ReadError(f"{relative} is cut off: it has {file.size} of {start + length} bytes")
        if relative.endswith(".safetensors"):
            return read_safetensors(file)
        return read_torch_zip(Span(file, start, length))


def _add_entry(contents: Contents, name: str, places: _StoragePlaces) -> None:
    inner = places.archive(name, None)
    for key, value in inner.entries.items():
        contents.entries[name if key == "value" else f"{name}.{key}"] = value
    for key, tensor in inner.tensors.items():
        contents.tensors[name if key == "value" else f"{name}.{key}"] = tensor
    contents.problems += [f"{abbreviated(name)}: {problem}" for problem in inner.problems]


def _put_together(described: object, name: str, places: _StoragePlaces) -> Tensor:
    """A tensor from its chunks."""
    shape, chunks = _sizes(_field(described, "size")), _field(described, "chunks")
    properties = getattr(_field(described, "properties"), "state", None)
    dtype = properties[0] if isinstance(properties, tuple) and properties else None
    if not isinstance(chunks, list) or not isinstance(dtype, Dtype):
        raise ReadError("its description is damaged, or of a dtype that is not known")
    pieces = []
    for chunk in chunks:
        at, sizes = _sizes(_field(chunk, "offsets")), _sizes(_field(chunk, "sizes"))
        if len(at) != len(shape) or len(sizes) != len(shape):
            raise ReadError("its chunks have another number of dimensions")
        if any(low + size > whole for low, size, whole in zip(at, sizes, shape)):
            raise ReadError("a chunk reaches out of it")
        if prod(sizes) or not shape:
            pieces.append((at, sizes, _chunk(places, name, at, sizes, dtype)))
    elements = sum(prod(sizes) for _, sizes, _ in pieces)
    if elements != prod(shape) or len({at for at, _, _ in pieces}) < len(pieces):
        raise ReadError("its chunks do not fill it")
    if len(pieces) == 1:
        return pieces[0][2]
    return Joined(dtype, shape, [Piece.whole(tensor, at) for at, _, tensor in pieces])


def _chunk(places: _StoragePlaces, name: str, at: tuple[int, ...], sizes: tuple[int, ...], dtype: Dtype) -> Tensor:
    held = places.archive(name, at)
    (tensor,) = held.tensors.values() if len(held.tensors) == 1 else [held.tensors.get(name)]
    if tensor is None or tensor.shape != sizes or tensor.dtype is not dtype:
        what = f"{tensor.dtype.name} {tensor.shape}" if tensor is not None else "no tensor"
        problem = f": {held.problems[0]}" if held.problems else ""
        raise ReadError(f"its file holds {what} in place of {dtype.name} {sizes}{problem}")
    return tensor


def _sizes(value: object) -> tuple[int, ...]:
    if isinstance(value, tuple) and all(type(size) is int and 0 <= size < 1 << 62 for size in value):
        return value
    raise ReadError(f"its description has the sizes {abbreviated(value)}")
