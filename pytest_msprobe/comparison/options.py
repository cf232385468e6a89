"""What a comparison can be asked to do, and its defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import find_dtype
from pytest_msprobe.option import Option

#: Differences that a user may declare to be expected.
ACCEPTABLE = ("dtype", "requires_grad", "unmatched")
RESULT_COLUMNS = ("result", "accuracy")
#: In place of a mapping file: the rules that need none.
BUILT_IN = "builtin"
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("", "false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """How two dumps are matched and judged, and what is written.

    Attributes:
        cell_mapping, api_mapping: YAML file, or True for the built-in rules alone, or None.
        data_mapping, layer_mapping: YAML file, or None.
        fuzzy: whether operations may match by the bare API name.
        distances: largest relative distance by canonical dtype name, where it is not the default.
        accept: differences that are warnings, of `ACCEPTABLE`.
        result_column: `result` for the newer tool's column, `accuracy` for the older one's.
        xlsx: whether an .xlsx file is written beside the .csv file.
    """

    cell_mapping: Path | bool | None = None
    api_mapping: Path | bool | None = None
    data_mapping: Path | None = None
    layer_mapping: Path | None = None
    fuzzy: bool = False
    distances: tuple[tuple[str, float], ...] = ()
    accept: frozenset[str] = frozenset()
    result_column: str = "result"
    xlsx: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ComparisonSettings:
        """The settings in `values`, which hold a parsed value for every one of `COMPARISON_OPTIONS`."""
        return cls(
            cell_mapping=values["cell_mapping"],
            api_mapping=values["api_mapping"],
            data_mapping=values["data_mapping"],
            layer_mapping=values["layer_mapping"],
            fuzzy=values["fuzzy"],
            distances=values["distance"],
            accept=values["accept"],
            result_column=values["result_column"],
            xlsx=values["xlsx"],
        )


def mapping_file(text: str) -> Path | None:
    """An existing file, or None for none."""
    if not text:
        return None
    path = Path(os.path.abspath(text))
    if not path.is_file():
        raise ValueError(f"{text!r} is not a file; give a mapping in YAML")
    return path


def mapping_or_rules(text: str) -> Path | bool | None:
    """An existing file, True for the built-in rules, None for none."""
    return True if text == BUILT_IN else mapping_file(text)


def flag(text: str) -> bool:
    """Yes or no."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def distances(text: str) -> tuple[tuple[str, float], ...]:
    """(dtype, largest distance) pairs of `Float32=1e-4,BFloat16=0.03`."""
    return tuple(_distance(part) for part in text.split(",") if part.strip())


def _distance(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    dtype = find_dtype(name.strip())
    if dtype is None or dtype.kind not in ("float", "complex"):
        raise ValueError(f"{text!r}: {name.strip()!r} is no floating dtype; write Float32=1e-4")
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"{text!r}: {number!r} is no number; write {dtype.name}=1e-4") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r}: a distance is above 0 and finite")
    return dtype.name, value


def accepted(text: str) -> frozenset[str]:
    """Words of `ACCEPTABLE`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in ACCEPTABLE:
            raise ValueError(f"{word!r} is none of {', '.join(ACCEPTABLE)}")
    return frozenset(words)


def result_column(text: str) -> str:
    """Whose result column the table has."""
    if text not in RESULT_COLUMNS:
        raise ValueError(f"{text!r} is none of {', '.join(RESULT_COLUMNS)}")
    return text


COMPARISON_OPTIONS = (
    Option(
        "cell_mapping",
        "FILE",
        f"comparison: target Cells and the golden Modules that they are; {BUILT_IN}: those of the same path",
        "",
        mapping_or_rules,
    ),
    Option(
        "api_mapping",
        "FILE",
        f"comparison: MindSpore APIs and what PyTorch calls them; {BUILT_IN}: by the built-in names",
        "",
        mapping_or_rules,
    ),
    Option("data_mapping", "FILE", "comparison: names of target values to golden ones", "", mapping_file),
    Option("layer_mapping", "FILE", "comparison: names of children by class of Cell", "", mapping_file),
    Option("fuzzy", "true", "comparison: match what is left by the bare API name", "false", flag, bare="true"),
    Option(
        "distance",
        "DTYPE=X",
        "comparison: largest relative distance by dtype, such as Float32=1e-4,BFloat16=0.03",
        "",
        distances,
    ),
    Option("accept", "WORDS", f"comparison: differences that only warn, of {', '.join(ACCEPTABLE)}", "", accepted),
    Option(
        "result_column",
        "|".join(RESULT_COLUMNS),
        "comparison: the table's column Result, or Accuracy Reached or Not as older tables have it",
        "result",
        result_column,
    ),
    Option("xlsx", "true", "comparison: write the table as a coloured .xlsx file as well", "false", flag, bare="true"),
)
