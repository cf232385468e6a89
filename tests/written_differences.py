"""Differences of arguments, as tests write them."""

from __future__ import annotations

import re

from pytest_msprobe.answers.finding import ArgumentDifference


def differences(text: str) -> tuple[ArgumentDifference, ...]:
    """Those that `dim -1 against 2, eps 1e-5 against absent` writes."""
    parts = [re.fullmatch(r"(\S+) (.+) against (.+)", part) for part in filter(None, text.split(", "))]
    return tuple(ArgumentDifference(*(side.replace("absent", "") for side in part.groups())) for part in parts if part)
