"""What a comparison can be asked to do, and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_msprobe.suites import options as option_values
from pytest_msprobe.suites.options import BENCH, BENCH_PYTHON, DATA_DIR, GOLDEN, MAX_MEMORY, Option

#: Differences that a user may declare to be expected.
#: `bits`: fingerprints differ and the statistics agree within their limits.
ACCEPTABLE = ("dtype", "requires_grad", "unmatched", "bits")
RESULT_COLUMNS = ("result", "accuracy")
#: In place of a mapping file: the rules that need none.
BUILT_IN = "builtin"
ACCOUNTING = ("auto", "off")
INHERITED = ("pass", "fail")


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """How two dumps are matched and judged, and what is written.

    Attributes:
        golden: dump or folder to compare with, or None.
        noise: dump or folder of the golden run with perturbed inputs, or None.
        cell_mapping, api_mapping: YAML file, or True for the built-in rules alone, or None.
        data_mapping, layer_mapping: YAML file, or None.
        fuzzy: whether operations may match by the bare API name.
        distances: largest relative distance by canonical dtype name, where it is not the default.
        accept: differences that are warnings, of `ACCEPTABLE`.
        result_column: `result` for the newer tool's column, `accuracy` for the older one's.
        xlsx: whether an .xlsx file is written beside the .csv file.
        accounting: `auto`: differences of tensor dumps are accounted for; `off`: distances alone judge.
        inherited: whether an operation whose difference is not its own fault passes or fails.
        diagnosis: file for the answer as JSON, or None.
    """

    golden: Path | None = None
    noise: Path | None = None
    cell_mapping: Path | bool | None = None
    api_mapping: Path | bool | None = None
    data_mapping: Path | None = None
    layer_mapping: Path | None = None
    fuzzy: bool = False
    distances: tuple[tuple[str, float], ...] = ()
    accept: frozenset[str] = frozenset()
    result_column: str = "result"
    xlsx: bool = False
    accounting: str = "auto"
    inherited: str = "pass"
    diagnosis: Path | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ComparisonSettings:
        """The settings in `values`, which hold a parsed value for every one of `OPTIONS`."""
        return cls(
            golden=values["golden"],
            noise=values["noise"],
            cell_mapping=values["cell_mapping"],
            api_mapping=values["api_mapping"],
            data_mapping=values["data_mapping"],
            layer_mapping=values["layer_mapping"],
            fuzzy=values["fuzzy"],
            distances=values["distance"],
            accept=values["accept"],
            result_column=values["result_column"],
            xlsx=values["xlsx"],
            accounting=values["accounting"],
            inherited=values["inherited"],
            diagnosis=values["diagnosis"],
        )


mapping_file = option_values.existing_file("a mapping in YAML")


def mapping_or_rules(text: str) -> Path | bool | None:
    """An existing file, True for the built-in rules, None for none."""
    return True if text == BUILT_IN else mapping_file(text)


def distances(text: str) -> tuple[tuple[str, float], ...]:
    """(dtype, largest distance) pairs of `Float32=1e-4,BFloat16=0.03`."""
    return tuple(_distance(part) for part in text.split(",") if part.strip())


def _distance(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    from msprobe_collector.dump_format import find_dtype

    dtype = find_dtype(name.strip())
    if dtype is None or dtype.kind not in ("float", "complex"):
        raise ValueError(f"{text!r}: {name.strip()!r} is not a floating dtype; write Float32=1e-4")
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"{text!r}: {number!r} is not a number; write {dtype.name}=1e-4") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r}: a distance must be above 0 and finite")
    return dtype.name, value


def accepted(text: str) -> frozenset[str]:
    """Words of `ACCEPTABLE`.

    Raises:
        ValueError: a word is none of them.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in ACCEPTABLE:
            raise ValueError(f"{word!r} is none of {', '.join(ACCEPTABLE)}")
    return frozenset(words)


OPTIONS = (
    GOLDEN,
    DATA_DIR,
    Option(
        "noise",
        "PATH",
        "comparison: the golden run again with inputs moved by debugger.perturb; gives each value its own tolerance",
        "",
        option_values.optional_path,
        is_path=True,
    ),
    Option(
        "cell_mapping",
        "FILE",
        f"comparison: which target Cell corresponds to which golden Module; {BUILT_IN}: those of the same path",
        "",
        mapping_or_rules,
        is_path=True,
    ),
    Option(
        "api_mapping",
        "FILE",
        f"comparison: which MindSpore API corresponds to which PyTorch API; {BUILT_IN}: by the built-in names",
        "",
        mapping_or_rules,
        is_path=True,
    ),
    Option(
        "data_mapping",
        "FILE",
        "comparison: which target value corresponds to which golden value",
        "",
        mapping_file,
        is_path=True,
    ),
    Option(
        "layer_mapping", "FILE", "comparison: names of child layers by class of Cell", "", mapping_file, is_path=True
    ),
    Option(
        "fuzzy",
        "true",
        "comparison: match the remaining operations by the bare API name",
        "false",
        option_values.switch,
        bare="true",
    ),
    Option(
        "distance",
        "DTYPE=X",
        "comparison: largest relative distance by dtype, such as Float32=1e-4,BFloat16=0.03",
        "",
        distances,
    ),
    Option(
        "accept",
        "WORDS",
        f"comparison: differences that are warnings only: any of {', '.join(ACCEPTABLE)}",
        "",
        accepted,
    ),
    Option(
        "result_column",
        "|".join(RESULT_COLUMNS),
        "comparison: the table's column Result, or Accuracy Reached or Not as older tables have it",
        "result",
        option_values.one_of(*RESULT_COLUMNS),
    ),
    Option(
        "xlsx",
        "true",
        "comparison: write the table as a coloured .xlsx file as well",
        "false",
        option_values.switch,
        bare="true",
    ),
    Option(
        "accounting",
        "|".join(ACCOUNTING),
        "comparison: auto: between tensor dumps, find where each difference is born; off: judge by distances alone",
        "auto",
        option_values.one_of(*ACCOUNTING),
    ),
    Option(
        "inherited",
        "|".join(INHERITED),
        "comparison: whether operations pass (as xfailed) or fail whose difference came in with their inputs or is "
        "rounding",
        "pass",
        option_values.one_of(*INHERITED),
    ),
    Option(
        "diagnosis",
        "FILE",
        "comparison: write which operations are at fault, and what follows from them, as JSON",
        "",
        option_values.optional_path,
        is_path=True,
    ),
    BENCH,
    BENCH_PYTHON,
    MAX_MEMORY,
)
