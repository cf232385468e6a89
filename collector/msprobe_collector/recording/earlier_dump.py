"""Which values differ from an earlier dump, by their fingerprints or checksums: only these keep their tensors."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_collector import logger
from msprobe_collector.dump_format.values import CHECKSUM, FINGERPRINT
from msprobe_collector.dump_format.writing.encoding import fingerprint_of

#: How the parts of a record name their values.
_PREFIXES = {"input_args": "input", "input_kwargs": "kwargs"}


class EarlierDump:
    """The fingerprints of a dump, and how many values have differed from them."""

    def __init__(self, root: Path, most: int | None) -> None:
        """Compare with the dump below `root`; behind `most` values that differ, no tensors are kept (None: all are)."""
        self._root, self._most = root, most
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        self._count = 0
        self._is_readable = False

    def open(self, folder: Path) -> None:
        """Read the dump of the step and rank of `folder`; what cannot be read is said, and all tensors are kept."""
        self._known.clear()
        step = self._root / folder.parent.name
        places = [step / folder.name, *sorted(step.glob("*"))]
        file = next((path for place in places if (path := place / "dump.json").is_file()), None)
        self._is_readable = False
        if file is None:
            logger.warning("bench_path: %s holds no dump.json; all tensors are kept", step)
            return
        try:
            records = json.loads(file.read_text(encoding="utf-8"))["data"]
            for record, fields in records.items():
                for name, value in fields.items():
                    for place, fingerprints in _fingerprints(value, _PREFIXES.get(name, name)):
                        self._known[record, place] = fingerprints
        except (OSError, ValueError, KeyError, AttributeError) as error:
            logger.warning("bench_path: %s; all tensors are kept", error)
            return
        self._is_readable = bool(self._known)
        if not self._known:
            logger.warning("bench_path: %s has neither fingerprints nor md5; all tensors are kept", file)

    def keeps(self, record: str, place: str, array: np.ndarray[Any, Any], stored: np.ndarray[Any, Any]) -> bool:
        """Whether a value differs from the earlier one, or there is none; `stored` is its form in a file."""
        if not self._is_readable:
            return True
        if self._most is not None and self._count >= self._most:
            return False
        fingerprint, checksum = self._known.get((record, place), ("", ""))
        if fingerprint:
            is_equal = fingerprint == fingerprint_of(array)
        else:
            is_equal = checksum == f"{zlib.crc32(np.ascontiguousarray(stored).data):08x}"
        self._count += not is_equal
        return not is_equal


def _fingerprints(value: Any, place: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """(place, (fingerprint, checksum)) of each tensor in the encoded `value`."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _fingerprints(item, f"{place}.{index}")
    elif isinstance(value, dict) and "shape" in value:
        fingerprints = str(value.get(FINGERPRINT) or ""), str(value.get(CHECKSUM) or "")
        if any(fingerprints):
            yield place, fingerprints
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _fingerprints(item, f"{place}.{name}")
