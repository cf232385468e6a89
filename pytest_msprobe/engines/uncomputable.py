"""API calls that no engine can compute from a dump, each with its reason: `uncomputable.txt` and its reader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines import references

#: `SigmoidGrad`, `GmmBackward`, but not `ApplyGradientDescent`.
_GRADIENT_KERNEL = re.compile(r"Grad(?!ient)|Backward")


def reason_uncomputable(api: ApiName) -> str | None:
    """Why no engine can compute `api` from what a dump holds, or None when one may."""
    if api.type == "Primitive" and _GRADIENT_KERNEL.search(api.short):
        return "a gradient kernel, which MindSpore calls itself: the backward record of its API is judged instead"
    own = references.find(api.type, api.table_name)
    if own is not None and own.reason:
        return own.reason
    return _reasons().get((api.type, api.table_name))


@cache
def _reasons() -> Mapping[tuple[str, str], str]:
    """Reasons by (type, name). A line `[Type] reason` speaks for the names on the lines after it."""
    reasons: dict[tuple[str, str], str] = {}
    api_type = reason = ""
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            api_type, _, reason = line[1:].partition("] ")
        elif not line.startswith("#"):
            reasons.update({(api_type, name): reason for name in line.split()})
    return reasons
