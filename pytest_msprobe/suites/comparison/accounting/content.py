"""Keys of tensor content: equal keys mean equal values, whatever the shape."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from msprobe_collector.dump_format import DumpError, TensorFolder
from msprobe_collector.dump_format.leaves import Leaf

_BYTES = 8


def load(leaf: Leaf | None, folder: TensorFolder) -> npt.NDArray[Any] | None:
    """The values of a tensor; None where the dump holds none, or none that can be read."""
    if leaf is None or leaf.tensor is None or not leaf.data_name:
        return None
    try:
        return folder.load(leaf.tensor, leaf.place)
    except DumpError:
        return None


def content_key(leaf: Leaf | None, array: npt.NDArray[Any] | None) -> str:
    """The key of a tensor: of its values, else its checksum, else its statistics, marked by the first letter.

    "" where there is no tensor, or none that can be read.
    """
    if leaf is None or leaf.tensor is None:
        return ""
    if array is not None:
        if array.dtype.kind in "iu":
            array = array.astype(np.int64)  # a number is the same in any width
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return f"v{hashlib.blake2b(content.data, digest_size=_BYTES).hexdigest()}"
    if leaf.md5:
        return f"m{leaf.md5}"
    if leaf.data_name or any(number is None for number in leaf.statistics):
        return ""
    return f"s{'x'.join(map(str, leaf.shape))}:{','.join(map(str, leaf.statistics))}"
