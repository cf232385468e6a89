"""Options of the pre-check that say what the device does to numbers, and how many random inputs are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytest_msprobe.suites.option import Option

if TYPE_CHECKING:
    from msprobe_collector.dump_format import ApiName

#: Which APIs multiply with rounded operands; their names are in `operand_rounding.py`.
_HF32_MODES = ("off", "conv", "matmul", "all")
#: What `backward-error` tolerates unless it is named.
_STRICT = ("saturation", "subnormals")
_MOST_SEEDS = 1000


@dataclass(frozen=True, slots=True)
class Hf32:
    """Where the device rounds float32 operands before it multiplies.

    Attributes:
        mode: `off`, `conv`, `matmul` or `all`.
        patterns: of API calls, in place of a mode: `Mint.matmul`, `Mint.conv*`.
    """

    mode: str = "off"
    patterns: tuple[str, ...] = ()

    def mode_of(self, api: ApiName) -> str:
        """The mode that counts for one API call."""
        if not self.patterns:
            return self.mode
        names = f"{api.type}.{api.api}", str(api)
        return "all" if any(fnmatchcase(name, pattern) for pattern in self.patterns for name in names) else self.mode


@dataclass(frozen=True, slots=True)
class NumericSettings:
    """What the options of this module say.

    Attributes:
        hf32: where operands are rounded.
        strict: what `backward-error` and `fused` do not tolerate: of `saturation`, `subnormals`.
        seeds: how many draws of random inputs each API call is checked with.
    """

    hf32: Hf32 = field(default_factory=Hf32)
    strict: frozenset[str] = frozenset()
    seeds: int = 1

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> NumericSettings:
        """Settings from the parsed values of all options by name."""
        return cls(values["hf32"], values["strict"], values["seeds"])


def _hf32(text: str) -> Hf32:
    if text in _HF32_MODES:
        return Hf32(text)
    patterns = tuple(part.strip() for part in text.split(","))
    if not all("." in pattern for pattern in patterns):
        raise ValueError(f"{text!r} is none of {', '.join(_HF32_MODES)}, nor patterns of API calls such as Mint.conv*")
    return Hf32(patterns=patterns)


def _strict(text: str) -> frozenset[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in _STRICT]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is unknown; known are {', '.join(_STRICT)}, separated by commas")
    return frozenset(names)


def _seeds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_SEEDS:
        raise ValueError(f"{text!r} is not a number of draws from 1 to {_MOST_SEEDS}")
    return int(text)


NUMERIC_OPTIONS = (
    Option(
        "hf32",
        "conv|matmul|all|off",
        "precheck: APIs whose float32 operands the device rounds to HF32 (CUDA: TF32); or patterns: Mint.conv*",
        "off",
        _hf32,
    ),
    Option(
        "strict",
        "NAMES",
        "precheck, standards backward-error and fused: do not tolerate saturation, subnormals (flushed to 0)",
        "",
        _strict,
    ),
    Option("seeds", "K", "precheck: check each API call with K draws of random inputs", "1", _seeds),
)
