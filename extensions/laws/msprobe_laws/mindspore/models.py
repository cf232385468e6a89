"""What MindSpore says of its models, as `msprobe_laws.models.ModelFramework` asks it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mindspore import mint, nn
from mindspore.experimental import optim

from msprobe_laws.mindspore.tensors import some_elements

MODE_HINT = "set_train() is missing?"
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, mint.nn.Dropout)
OPTIMIZERS = (nn.Optimizer, optim.Optimizer)


def parts(root: Any) -> Iterable[tuple[str, Any]]:
    """See `Framework`."""
    cells: Iterable[tuple[str, Any]] = root.cells_and_names()
    return cells


def parameters(root: Any) -> Iterator[tuple[str, Any]]:
    """See `Framework`."""
    for path, cell in parts(root):
        front = f"{path}." if path else ""
        for name, item in cell._params.items():
            if item is not None:
                yield front + name, item


def own_parameters(part: Any) -> list[Any]:
    """See `Framework`."""
    return [item for item in part._params.values() if item is not None]


def parameter_at(root: Any, path: str) -> Any:
    """See `Framework`."""
    *cells, name = path.split(".")
    for cell in cells:
        root = getattr(root, "_cells", {}).get(cell)
    return getattr(root, "_params", {}).get(name)


def buffers(root: Any) -> Mapping[str, tuple[str, str]]:
    """See `Framework`: there are none that are no parameters."""
    return {}


def has_modes(root: Any) -> bool:
    """See `Framework`."""
    for _, cell in parts(root):
        if (isinstance(cell, DROPOUTS) and rate_of(cell) > 0) or "BatchNorm" in type(cell).__name__:
            return True
    return False


def declared_tie(root: Any) -> None:
    """See `Framework`: the models of MindSpore declare none."""


def ids_in_optimizers() -> set[int]:
    """See `Framework`."""
    ids: set[int] = set()
    for item in gc.get_objects():
        if issubclass(type(item), OPTIMIZERS):
            ids.update(map(id, getattr(item, "parameters", ())))
    return ids


def some_bytes(parameter: Any) -> bytes:
    """See `Framework`."""
    return some_elements(parameter, 64).tobytes()


def rate_of(cell: Any) -> float:
    """Return the probability to drop of a dropout Cell."""
    rate = getattr(cell, "p", None)
    if isinstance(rate, (int, float)):
        return float(rate)
    kept = getattr(cell, "keep_prob", None)
    return 1 - float(kept) if isinstance(kept, (int, float)) else 0.5
