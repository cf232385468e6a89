"""API calls that cannot be judged at all, each with its reason."""

from __future__ import annotations

import re

from msprobe_collector.dump_format import ApiName, is_communication
from pytest_msprobe.apis.fact_table import facts
from pytest_msprobe.apis.random import random_api

#: `SigmoidGrad`, `GmmBackward`, but not `ApplyGradientDescent`.
_GRADIENT_KERNEL = re.compile(r"Grad(?!ient)|Backward")


def reason_not_judged(api: ApiName, framework: str = "mindspore") -> str | None:
    """Why neither a benchmark nor a law can judge the outputs of `api`, or None when one may."""
    reason = reason_uncomputable(api, framework)
    if reason is not None:
        return reason
    entry = random_api(api, framework)
    return entry.reason if entry is not None and entry.reason else None


def reason_uncomputable(api: ApiName, framework: str = "mindspore") -> str | None:
    """Why no engine can compute `api` from what a dump holds, or None when one may."""
    if is_communication(api.type):
        return "communication: the other ranks' data is not in this dump"
    if framework == "mindspore" and api.type == "Primitive" and _GRADIENT_KERNEL.search(api.short):
        return "a gradient kernel, which MindSpore calls itself: the backward record of its API is judged instead"
    found = facts("not_judged").of(api, framework)
    return None if found is None else found.reason
