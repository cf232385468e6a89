"""Which phrase names each fault of the catalogue rightly."""

from __future__ import annotations

import re

_SCALE = {"scale 5 %": r"1\.05", "scale 1 %": r"1\.01", "scale 0.1 %": r"1\.001"}
#: What the phrase must contain. Faults in how a result was computed leave no pattern of places or values.
NAMES = {
    "one element 5 % off": r"one element|1\.05.* x too large",
    "one element doubled": r"2 x too large",
    "one element lost (0)": r"zero",
    "one element of the other sign": r"other sign",
    "one element NaN": r"NaN",
    "one element Inf": r"Inf",
    "two elements swapped": r"two elements swapped",
    "last eighth not written": r"zero",
    "last eighth repeats the first": r"repeats block 0",
    "all elements 0": r"zero",
    **{fault: rf"^{factor}\d* x too large" for fault, factor in _SCALE.items()},
    "1 % of the mean size added": r"added",
    "sign of all elements": r"other sign",
    "shifted by one element": r"shifted",
    "written in transposed layout": r"transposed",
    "noise of 16 roundings": r"noise of about|scattered",
    "output of lower precision": r"matches",
    "inputs of lower precision": r"matches operands|matches",
    "one integer or bool wrong": r"too large by 1|inverted",
    "rounded towards zero": r"rounded towards zero|too small in size",
    "one tile not written": r"zero, one .* tile|zero, (rows|columns|column|row)",
    "one column doubled": r"2 x too large",
}


def is_named(fault: str, pattern: str) -> bool | None:
    """Whether `pattern` names `fault`; None for a fault that has no name."""
    expected = NAMES.get(fault)
    return None if expected is None else re.search(expected, pattern) is not None
