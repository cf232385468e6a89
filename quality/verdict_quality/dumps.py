"""Recordings as a dump folder of task `tensor`, as a collector would have left it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import Dtype
from quality.verdict_quality.recordings import Recording, Results


def write_dump(folder: Path, recordings: Iterable[tuple[Recording, Results]]) -> Path:
    """A dump of these calls with these results; the path of its dump.json."""
    builder = DumpBuilder(folder)
    for recording, results in recordings:
        has_backward = bool(recording.wanted)
        builder.call(
            recording.name,
            [_entry(value) for value in recording.call.arguments],
            _nested(results),
            keywords={key: _entry(value) for key, value in recording.call.keywords.items()},
            incoming=list(recording.incoming) if has_backward else None,
            gradients=_by_tensor(recording, results) if has_backward else None,
        )
    return builder.write()


def _entry(value: Any) -> Any:
    if isinstance(value, Dtype):
        return {"type": "mindspore.dtype", "value": value.name}
    if isinstance(value, slice):
        return {"type": "slice", "value": [value.start, value.stop, value.step]}
    if value is Ellipsis:
        return {"type": "ellipsis", "value": "..."}
    if isinstance(value, tuple):
        return [_entry(item) for item in value]
    return value


def _nested(results: Results) -> list[Any]:
    """Output leaves as the API returned them: those that share a first step are one list."""
    tree: dict[Any, Any] = {}
    for output in results.outputs:
        *steps, last = output.path
        place = tree
        for step in steps:
            place = place.setdefault(step, {})
        place[last] = output.value
    return list(map(_listed, tree.values()))


def _listed(value: Any) -> Any:
    return list(map(_listed, value.values())) if isinstance(value, dict) else value


def _by_tensor(recording: Recording, results: Results) -> list[Any]:
    """Entry i is the gradient of the i-th tensor argument, None where it has none."""
    found = dict(zip(recording.wanted, results.gradients))
    return [
        found.get(("input", index))
        for index, value in enumerate(recording.call.arguments)
        if isinstance(value, np.ndarray)
    ]
