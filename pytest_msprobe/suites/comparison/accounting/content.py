"""Keys of tensor content: equal keys mean equal values, whatever the shape."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from msprobe_collector.dump_format import DumpError, TensorFolder
from msprobe_collector.dump_format.leaves import Leaf

_BYTES = 8


def content_key(leaf: Leaf | None, folder: TensorFolder) -> str:
    """The key of a tensor: of its values, else its checksum, else its statistics, marked by the first letter.

    "" where there is no tensor, or none that can be read.
    """
    if leaf is None or leaf.tensor is None:
        return ""
    if leaf.data_name:
        try:
            array = folder.load(leaf.tensor, leaf.place)
        except DumpError:
            return ""
        return f"v{_hash(array)}"
    if leaf.md5:
        return f"m{leaf.md5}"
    if any(number is None for number in leaf.statistics):
        return ""
    return f"s{leaf.dtype}{'x'.join(map(str, leaf.shape))}:{','.join(map(str, leaf.statistics))}"


def _hash(array: npt.NDArray[np.generic]) -> str:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.blake2b(content.data, digest_size=_BYTES).hexdigest() + array.dtype.kind
