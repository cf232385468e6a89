"""The layers of watched models by their paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any


def named_layers(models: Sequence[Any], walk: Callable[[Any], Iterable[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """(path, layer) of every layer below the `models`, each once under its first path; the models have the path "".

    `walk` gives (path, layer) of a model and of all layers below it. Of several models, paths begin with their number.
    """
    seen: set[int] = set()
    for index, model in enumerate(models):
        front = f"{index}." if len(models) > 1 else ""
        for path, layer in walk(model):
            if id(layer) not in seen:
                seen.add(id(layer))
                yield (f"{front}{path}" if path else ""), layer
