"""What of a dump may stand among the arguments of a call besides tensors and dtypes: plain values, and few strings."""

from __future__ import annotations

from typing import Any

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.apis.operators import refused_argument
from pytest_msprobe.engines.protocol import LeafPath, Unsupported


def plain_argument(api: ApiName, path: LeafPath, value: Any) -> Any:
    """`value`, a leaf at `path` that is neither an array nor a dtype.

    Raises:
        Unsupported: it is a string that is not among those which the operator takes, or stands in a dict.
    """
    if len(path) > 2 and any(isinstance(step, str) for step in path[2:]):
        raise Unsupported(f"{_place(path)} is in a dict, which no operator takes")
    if isinstance(value, str) and (reason := refused_argument(api.short, value)) is not None:
        raise Unsupported(f"{_place(path)}: {reason}")
    return value


def _place(path: LeafPath) -> str:
    return f"{path[0]}{''.join(f'[{step!a}]' for step in path[1:])}"
