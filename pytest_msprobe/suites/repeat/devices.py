"""Whether all devices computed the same, from digests of what each of them computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Outputs with more elements are described by their flat positions.
_MOST_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Devices whose results of one record differ.

    Attributes:
        usual: devices that agree, more than any others.
        odd: the others; all of them where no group is the largest.
        where: which outputs differ, and where.
    """

    usual: tuple[str, ...]
    odd: tuple[str, ...]
    where: str


def compare_devices(contents: Mapping[str, Mapping[str, Any]]) -> Disagreement | None:
    """How the devices disagree on one record; None where all have the same digest.

    Args:
        contents: by device, `digest` and `outputs` of `runs.content_digest`.
    """
    groups: dict[str, list[str]] = {}
    for device, content in contents.items():
        groups.setdefault(content["digest"], []).append(device)
    if len(groups) < 2:
        return None
    ranked = sorted(groups.values(), key=len, reverse=True)
    is_open = len(ranked[0]) == len(ranked[1])
    usual = [] if is_open else ranked[0]
    odd = [device for device in contents if device not in usual]
    first = ranked[0][0]
    other = next(device for device in odd if contents[device]["digest"] != contents[first]["digest"])
    return Disagreement(tuple(usual), tuple(odd), _where(contents[other]["outputs"], contents[first]["outputs"]))


def listed(devices: Sequence[str]) -> str:
    """`device 3`, `devices 0, 1 and 2`."""
    if len(devices) == 1:
        return f"device {devices[0]}"
    return f"devices {', '.join(devices[:-1])} and {devices[-1]}"


def _where(found: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> str:
    """The outputs that differ, with the places of their blocks that do."""
    texts = []
    for one, other in zip(found, right):
        if one["shape"] != other["shape"] or len(one["blocks"]) != len(other["blocks"]):
            texts.append(f"{one['label']} of shape {tuple(one['shape'])} in place of {tuple(other['shape'])}")
            continue
        blocks = [place for place, pair in enumerate(zip(one["blocks"], other["blocks"])) if pair[0] != pair[1]]
        if blocks:
            region = _region(blocks, one["length"], tuple(one["shape"]))
            texts.append(f"{one['label']}{f' within {region}' if region else ''}")
    return ", ".join(texts) or "other outputs"


def _region(blocks: Sequence[int], length: int, shape: tuple[int, ...]) -> str:
    """Where the elements of `blocks` are, each of so many elements; "" where they are everywhere."""
    size = math.prod(shape)
    if size > _MOST_ELEMENTS:
        return f"elements {blocks[0] * length} to {min(size, (blocks[-1] + 1) * length) - 1}"
    import numpy as np

    from pytest_msprobe.numerics.regions import describe_region

    is_off = np.zeros(size, np.bool_)
    for block in blocks:
        is_off[block * length : (block + 1) * length] = True
    return describe_region(is_off.reshape(shape))
