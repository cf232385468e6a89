"""What the pre-check can be asked to do, and its defaults.

- The key `standards` of --msprobe-config says which standard judges which dtypes and API calls, and how strictly.
- Loads neither NumPy nor a framework: a mistake is found before the run. `standards.py` makes the standards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import ApiName, find_dtype
from pytest_msprobe.suites.options import (
    BenchOptions,
    DeviceOptions,
    InputOptions,
    Options,
    flag,
    option,
    parse_cosine,
    parse_optional_path,
    parse_positive,
    parse_size,
)

#: Which APIs multiply with rounded operands; `auto` is as the manifest of the run says.
_HF32_MODES = ("auto", "off", "conv", "matmul", "all")
#: What `backward-error` tolerates unless it is named.
_TOLERATED = ("saturation", "subnormals")
_MOST_DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Hf32:
    """Where the device rounds float32 operands before it multiplies.

    Attributes:
        mode: `auto`, `off`, `conv`, `matmul` or `all`.
        patterns: of API calls, in place of a mode: `Mint.matmul`, `Mint.conv*`.
    """

    mode: str = "auto"
    patterns: tuple[str, ...] = ()

    def mode_of(self, api: ApiName) -> str:
        """The mode that counts for one API call."""
        if not self.patterns:
            return self.mode
        return "all" if any(matches(pattern, api) for pattern in self.patterns) else "off"


def _hf32(text: str) -> Hf32:
    if text in _HF32_MODES:
        return Hf32(text)
    patterns = tuple(map(str.strip, text.split(",")))
    if not all("." in pattern for pattern in patterns):
        raise ValueError(f"{text!r} is none of {', '.join(_HF32_MODES)}, nor patterns of API calls such as Mint.conv*")
    return Hf32(patterns=patterns)


def _fail_on(text: str) -> frozenset[str]:
    names = list(filter(None, map(str.strip, text.split(","))))
    unknown = [name for name in names if name not in _TOLERATED]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is unknown; known are {', '.join(_TOLERATED)}, separated by commas")
    return frozenset(names)


def _draws(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_DRAWS:
        raise ValueError(f"{text!r} is not a number of draws from 1 to {_MOST_DRAWS}")
    return int(text)


@dataclass(frozen=True)
class NumericSettings(Options):
    """What the device does to numbers, what `backward-error` and `fused` do not tolerate, draws of random inputs."""

    hf32: Hf32 = option(
        "auto|conv|matmul|all|off",
        "API calls whose float32 operands the device rounds before it multiplies (HF32; TF32 on CUDA): auto (as "
        "run.json says), conv (convolutions), matmul (matrix products), all (both), off (none), or patterns such as "
        "Mint.conv*",
        _hf32,
        "auto",
    )
    fail_on: frozenset[str] = option(
        "NAMES",
        "standards backward-error and fused: fail what they tolerate: saturation (the largest number in place of Inf), "
        "subnormals (0 in their place), or both, separated by a comma",
        _fail_on,
    )
    draws: int = option(
        "K",
        "draw random inputs K times, and check each API call with all of them, from --msprobe-seed on",
        _draws,
        "1",
        question="where",
    )


Bounds = tuple[tuple[str, float], ...]

#: The bounds of each standard by the name that users know, the default first; `precheck/standards.py` makes them.
STANDARD_BOUNDS = {
    "cosine-maxabs": ("cosine", "max_abs"),
    "backward-error": ("sensitivity", "single_sensitivity", "rounding"),
    "fused": ("sensitivity", "single_sensitivity", "rounding"),
    "absolute-threshold": ("small_value", "relative", "absolute"),
    "benchmark": ("small", "rmse", "max_relative", "mean_relative"),
    "ulp": ("ulps", "share", "mean"),
    "binary": (),
    "thousandth": ("relative", "share"),
    "accumulative-error": ("bound", "balance"),
    "mere-mare": ("mere", "mare"),
    "mixed-tolerance": ("relative", "absolute", "share", "largest"),
}
DEFAULT = "cosine-maxabs"
#: The standard of each API by msProbe's documents.
BY_API = "msprobe"
STANDARDS = (*STANDARD_BOUNDS, BY_API)

_KEYS = ("bounds", "dtypes", "apis")
#: What a bound may be, where that is not "from 0 on", as the classes of the standards have it.
_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "cosine": (lambda value: -1 <= value < 1, "from -1 up to, but not, 1"),
    "max_abs": (lambda value: 0 < value < math.inf, "above 0"),
}
_FROM_ZERO: tuple[Callable[[float], bool], str] = (lambda value: 0 <= value < math.inf, "from 0 on")


@dataclass(frozen=True, slots=True)
class NamedStandard:
    """A standard by name.

    Attributes:
        name: one of `STANDARD_BOUNDS`, or `BY_API`.
        bounds: all of its bounds by name; empty for those that it has of itself.
    """

    name: str
    bounds: Bounds = ()

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {value:g}" for name, value in self.bounds)
        return f"{self.name} ({shown})" if shown else self.name


@dataclass(frozen=True, slots=True)
class StandardChoice:
    """What `standards` says; empty without it.

    Attributes:
        source: where it was read, for messages; "" without it.
        bounds: bounds of a standard wherever it is used without bounds of its own, by name of the standard.
        dtypes: standards by dtype of the tested output, as dumps name it (`Float16`).
        apis: (pattern, standard) for API calls; the first that matches counts, and goes before `dtypes`.
    """

    source: str = ""
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    dtypes: Mapping[str, NamedStandard] = field(default_factory=dict)
    apis: tuple[tuple[str, NamedStandard], ...] = ()

    @property
    def named(self) -> tuple[tuple[str, NamedStandard], ...]:
        """All standards with the dtypes and patterns that they are for."""
        return (*self.dtypes.items(), *self.apis)

    def of_api(self, api: ApiName) -> NamedStandard | None:
        """The standard that a pattern gives to this API call; None when none matches."""
        return next((chosen for pattern, chosen in self.apis if matches(pattern, api)), None)


def standard_name(text: str) -> str:
    """The name of a standard, as it is.

    Raises:
        ValueError: there is no standard of this name; the text suggests one.
    """
    if text not in STANDARDS:
        raise ValueError(f"{text!r} is not a standard; {_hint(text, STANDARDS)}")
    return text


def matches(pattern: str, api: ApiName) -> bool:
    """Whether `pattern` is meant for `api`: `Mint.matmul` and `Mint.mat*` for its calls, `Mint.matmul.3` for one."""
    return fnmatchcase(f"{api.type}.{api.api}", pattern) or fnmatchcase(str(api), pattern)


def read_choice(content: Any, source: str) -> StandardChoice:
    """What the value of the key `standards` says, which stands in `source`.

    Raises:
        ValueError: it is wrong; one line with the key and the value.
    """
    if content is None:
        return StandardChoice()
    sections = _mapping(content, "standards")
    for key in sections:
        if key == "default":
            raise ValueError("standards: unknown key 'default'; the default is the key 'standard', beside 'standards'")
        if key not in _KEYS:
            raise ValueError(f"standards: unknown key {key!r}; {_hint(key, _KEYS)}")
    entries = {key: _mapping(sections.get(key) or {}, f"standards: {key}") for key in _KEYS}
    return StandardChoice(
        source,
        dict(_bounds_by_standard(entries["bounds"])),
        dict(_standards_by_dtype(entries["dtypes"])),
        tuple((pattern, _named(value, f"standards: apis: {pattern!r}")) for pattern, value in entries["apis"].items()),
    )


def _bounds_by_standard(entries: Mapping[str, Any]) -> Iterator[tuple[str, Bounds]]:
    for name, value in entries.items():
        where = f"standards: bounds: {name!r}"
        if name == "cosine-maxabs":
            raise ValueError(f"{where}: write them as the keys 'cosine' and 'max_abs', beside 'standards'")
        if name == BY_API or name not in STANDARD_BOUNDS:
            raise ValueError(f"{where}: is not a standard with bounds; {_hint(name, STANDARD_BOUNDS)}")
        yield name, _bounds(name, _mapping(value, where), where)


def _standards_by_dtype(entries: Mapping[str, Any]) -> Iterator[tuple[str, NamedStandard]]:
    places: dict[str, str] = {}
    for key, value in entries.items():
        where = f"standards: dtypes: {key!r}"
        dtype = find_dtype(key)
        if dtype is None:
            raise ValueError(f"{where}: is not a dtype; write it as dumps do, such as Float16, BFloat16 or Float32")
        if dtype.kind not in ("float", "complex"):
            raise ValueError(f"{where}: {dtype.name} outputs must be equal under every standard")
        if dtype.name in places:
            raise ValueError(f"{where}: means the same as {places[dtype.name]!r}; keep one")
        places[dtype.name] = key
        yield dtype.name, _named(value, where)


def _named(value: Any, where: str) -> NamedStandard:
    if not isinstance(value, Mapping):
        return NamedStandard(_name(value, where))
    entry = _mapping(value, where)
    if "standard" not in entry:
        raise ValueError(f"{where}: lacks the key 'standard', found {', '.join(map(repr, entry)) or 'nothing'}")
    name = _name(entry["standard"], where)
    bounds = {key: number for key, number in entry.items() if key != "standard"}
    return NamedStandard(name, _bounds(name, bounds, where) if bounds else ())


def _name(value: Any, where: str) -> str:
    try:
        return standard_name(str(value))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _bounds(name: str, numbers: Mapping[str, Any], where: str) -> Bounds:
    keys = STANDARD_BOUNDS.get(name, ())
    if not keys:
        raise ValueError(f"{where}: {name} has no bounds, found {', '.join(map(repr, numbers)) or 'nothing'}")
    for key in numbers:
        if key not in keys:
            raise ValueError(f"{where}: {name} has no bound {key!r}; {_hint(key, keys)}")
    missing = [key for key in keys if key not in numbers]
    if missing:
        raise ValueError(f"{where}: lacks {', '.join(map(repr, missing))}; give all bounds of {name}, or none")
    return tuple((key, _number(key, numbers[key], f"{where}: {key}")) for key in keys)


def _number(key: str, value: Any, where: str) -> float:
    # YAML reads 1e-4, without a point, as text.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{where}: {value!r} is not a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"{where}: {value!r} is not a number") from None
    is_allowed, allowed = _RANGES.get(key, _FROM_ZERO)
    if not is_allowed(number):
        raise ValueError(f"{where}: {value!r} is not a number {allowed}")
    return number


def _mapping(content: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{where}: expected names with values, found {content!r:.80}")
    return content


def _hint(text: str, choices: Any) -> str:
    near = get_close_matches(text, choices, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(choices)}"


def _error_data(text: str) -> Path | bool | None:
    """A folder, True for the one in that of the results, None for none."""
    return True if text == "auto" else parse_optional_path(text)


@dataclass(frozen=True)
class PrecheckSettings(InputOptions, BenchOptions, DeviceOptions):
    """What is tested against what, by which rule, and what failing API calls leave behind."""

    standard: str = option(
        "NAME",
        "rule for outputs: cosine-maxabs (limits of --msprobe-cosine and --msprobe-max-abs), backward-error (no more "
        "than rounding explains), fused (the same for exact inputs), absolute-threshold (each element within a bound), "
        "benchmark (not much worse than an ordinary run in that dtype), ulp (a few units of the last place), binary "
        "(every element equal), thousandth (99.9 % of elements within 0.001), accumulative-error (wide bounds, errors "
        "of both signs), mere-mare and mixed-tolerance (by which CANN accepts operators), msprobe (for each API the "
        "one of these that the documents of msProbe name)",
        standard_name,
        DEFAULT,
        is_common=True,
    )
    cosine: float = option(
        "X", "standard cosine-maxabs: fail outputs whose cosine with the benchmark is not above X", parse_cosine, "0.99"
    )
    max_abs: float = option(
        "X",
        "standard cosine-maxabs: fail outputs whose largest absolute error is not below X",
        parse_positive,
        "1e-4",
        is_common=True,
    )
    numeric: NumericSettings = field(default_factory=NumericSettings)
    edge_cases: bool = flag(
        "check every API with constructed inputs as well: empty, scalar, broadcast, strided and large tensors, extreme "
        "values, NaN, Inf",
        question="what",
        is_common=True,
    )
    standards: StandardChoice = option("", "standards by dtype and API", read_choice, is_yaml_only=True)
    error_data: Path | bool | None = option(
        "DIR|auto",
        "save inputs and outputs of every failing API call in DIR, as a dump that can be checked again; auto: in "
        "error_data below --msprobe-out",
        _error_data,
        is_path=True,
        question="write",
        is_common=True,
    )
    reproducers: Path | None = option(
        "DIR",
        "write a script with its data for every failing API call into DIR",
        parse_optional_path,
        is_path=True,
        question="write",
        is_common=True,
    )
    error_data_limit_bytes: int = option(
        "SIZE",
        "largest size of the folder of --msprobe-error-data, and of that of --msprobe-reproducers",
        parse_size,
        "1GB",
        name="error_data_limit",
        question="write",
    )

    def error_data_folder(self, out: Path) -> Path | None:
        """Folder for inputs and outputs of failing calls, None for none; `out` is that of the results."""
        return out / "error_data" if self.error_data is True else self.error_data or None
