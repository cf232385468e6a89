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
    NOISE,
    Options,
    choice,
    existing_file,
    flag,
    option,
    parse_optional_path,
)

#: Differences that a user may declare to be expected.
#: `bits`: fingerprints differ and the statistics agree within their limits.
#: `unaccounted`: it is not shown that rounding made the difference.
ACCEPTABLE = ("dtype", "requires_grad", "unmatched", "bits", "unaccounted")
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
    noise: Path | None = NOISE
    exact: Path | None = option(
        "PATH",
        "say which of both runs is nearer to this dump, the same step in float64: made by python -m msprobe_collector "
        "collect --dtype=float64",
        parse_optional_path,
        is_path=True,
        question="what",
    )
    cell_mapping: Path | bool | None = option(
        f"FILE|{BUILT_IN}",
        f"YAML file on which Cell of the target is which Module of the golden run; {BUILT_IN}: those of one path",
        mapping_or_rules,
        is_path=True,
        question="what",
    )
    api_mapping: Path | bool | None = option(
        f"FILE|{BUILT_IN}",
        f"YAML file on which MindSpore API is which PyTorch API; {BUILT_IN}: by the tables of this plugin alone",
        mapping_or_rules,
        is_path=True,
        question="what",
    )
    data_mapping: Path | None = option(
        "FILE",
        "YAML file on which value of the target is which value of the golden run",
        mapping_file,
        is_path=True,
        question="what",
    )
    layer_mapping: Path | None = option(
        "FILE",
        "YAML file with what child layers are called in the golden run, by class of Cell",
        mapping_file,
        is_path=True,
        question="what",
    )
    fuzzy: bool = flag(
        "match operations that are left over by their APIs alone, whatever Cell or call they are in", question="what"
    )
    distances: tuple[tuple[str, float], ...] = option(
        "DTYPE=X",
        "largest relative distance by dtype, such as Float32=1e-4,BFloat16=0.03; other dtypes keep theirs",
        parse_distances,
        name="distance",
    )
    accept: frozenset[str] = option(
        "WORDS",
        f"warn of such differences instead of failing them: any of {', '.join(ACCEPTABLE)}",
        accepted,
        is_common=True,
    )
    result_column: str = choice(
        RESULT_COLUMNS,
        "judge in the column Result of the table, or in Accuracy Reached or Not as older tables do",
        question="write",
    )
    table: str = choice(
        ("csv", "off"),
        "whether table (.csv) and advice are written; off where only the answer counts",
        question="write",
    )
    xlsx: bool = flag("write the table as a coloured .xlsx file as well", question="write")
    accounting: str = choice(
        ("auto", "off"),
        "auto: between dumps of tensors, find which operation made each difference; off: judge by distances alone",
    )
    inherited: str = choice(
        ("pass", "fail"),
        "whether operations pass (as xfailed) or fail whose difference came in with their inputs or is rounding",
    )
    bench: str = BENCH
    bench_python: str | None = BENCH_PYTHON
    max_memory_bytes: int = MAX_MEMORY_BYTES
