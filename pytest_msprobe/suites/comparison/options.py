"""What a comparison can be asked to do, and its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_msprobe.suites.options import (
    BENCH,
    BENCH_PYTHON,
    DATA_DIR,
    GOLDEN,
    MAX_MEMORY_BYTES,
    Options,
    choice,
    existing_file,
    flag,
    option,
    parse_optional_path,
)

#: Differences that a user may declare to be expected.
#: `bits`: fingerprints differ and the statistics agree within their limits.
ACCEPTABLE = ("dtype", "requires_grad", "unmatched", "bits")
RESULT_COLUMNS = ("result", "accuracy")
#: In place of a mapping file: the rules that need none.
BUILT_IN = "builtin"


mapping_file = existing_file("a mapping in YAML")


def mapping_or_rules(text: str) -> Path | bool | None:
    """An existing file, True for the built-in rules, None for none."""
    return True if text == BUILT_IN else mapping_file(text)


def parse_distances(text: str) -> tuple[tuple[str, float], ...]:
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


@dataclass(frozen=True)
class ComparisonSettings(Options):
    """How two dumps are matched and judged, and what is written.

    The mappings of Cells and of APIs are a file, True for the built-in rules alone, or None. `distances` are largest
    relative distances by canonical dtype name, where they are not the default.
    """

    golden: Path | None = GOLDEN
    data_dir: tuple[Path, ...] = DATA_DIR
    noise: Path | None = option(
        "PATH",
        "comparison: the golden run again with inputs moved by debugger.perturb; gives each value its own tolerance",
        parse_optional_path,
        is_path=True,
    )
    cell_mapping: Path | bool | None = option(
        "FILE",
        f"comparison: which target Cell corresponds to which golden Module; {BUILT_IN}: those of the same path",
        mapping_or_rules,
        is_path=True,
    )
    api_mapping: Path | bool | None = option(
        "FILE",
        f"comparison: which MindSpore API corresponds to which PyTorch API; {BUILT_IN}: by the built-in names",
        mapping_or_rules,
        is_path=True,
    )
    data_mapping: Path | None = option(
        "FILE", "comparison: which target value corresponds to which golden value", mapping_file, is_path=True
    )
    layer_mapping: Path | None = option(
        "FILE", "comparison: names of child layers by class of Cell", mapping_file, is_path=True
    )
    fuzzy: bool = flag("comparison: match the remaining operations by the bare API name")
    distances: tuple[tuple[str, float], ...] = option(
        "DTYPE=X",
        "comparison: largest relative distance by dtype, such as Float32=1e-4,BFloat16=0.03",
        parse_distances,
        name="distance",
    )
    accept: frozenset[str] = option(
        "WORDS", f"comparison: differences that are warnings only: any of {', '.join(ACCEPTABLE)}", accepted
    )
    result_column: str = choice(
        RESULT_COLUMNS, "comparison: the table's column Result, or Accuracy Reached or Not as older tables have it"
    )
    xlsx: bool = flag("comparison: write the table as a coloured .xlsx file as well")
    accounting: str = choice(
        ("auto", "off"),
        "comparison: auto: between tensor dumps, find where each difference is born; off: judge by distances alone",
    )
    inherited: str = choice(
        ("pass", "fail"),
        "comparison: whether operations pass (as xfailed) or fail whose difference came in with their inputs or is "
        "rounding",
    )
    diagnosis: Path | None = option(
        "FILE",
        "comparison: write which operations are at fault, and what follows from them, as JSON",
        parse_optional_path,
        is_path=True,
    )
    bench: str = BENCH
    bench_python: str | None = BENCH_PYTHON
    max_memory_bytes: int = MAX_MEMORY_BYTES


OPTIONS = ComparisonSettings.declared()
