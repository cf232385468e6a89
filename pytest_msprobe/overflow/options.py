"""What the overflow suite can be asked to do, and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_msprobe import option_values
from pytest_msprobe.option import Option

UNDECIDED = ("fail", "skip")


@dataclass(frozen=True, slots=True)
class OverflowSettings:
    """How strict the verdicts are.

    Attributes:
        strict: whether an origin fails also where the CPU overflows as the device did.
        fails_undecided: whether an origin fails that could not be computed again; else it is skipped.
        rules: YAML file of further uninitialised buffers, or None.
    """

    strict: bool = False
    fails_undecided: bool = True
    rules: Path | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> OverflowSettings:
        """The settings in `values`, which hold a parsed value for every one of `OVERFLOW_OPTIONS`."""
        return cls(
            strict=values["overflow_strict"],
            fails_undecided=values["overflow_undecided"] == "fail",
            rules=values["overflow_rules"],
        )


def undecided(text: str) -> str:
    """What becomes of undecided origins."""
    if text not in UNDECIDED:
        raise ValueError(f"{text!r} is none of {', '.join(UNDECIDED)}")
    return text


def rule_file(text: str) -> Path | None:
    """An existing file, or None for none."""
    path = option_values.optional_path(text)
    if path is not None and not path.is_file():
        raise ValueError(f"{text!r} is not a file; give rules in YAML")
    return path


OVERFLOW_OPTIONS = (
    Option(
        "overflow_strict",
        "true",
        "overflow: fail also where the CPU overflows as the device did",
        "false",
        option_values.switch,
        bare="true",
    ),
    Option(
        "overflow_undecided",
        "|".join(UNDECIDED),
        "overflow: what becomes of an origin that the CPU cannot compute again",
        "fail",
        undecided,
    ),
    Option("overflow_rules", "FILE", "overflow: further buffers that are not initialised (YAML)", "", rule_file),
)
