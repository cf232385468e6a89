"""docs/migration.md names every call on which we and msProbe disagree, and no other."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_dumps import real_dumps

ROOT = Path(__file__).resolve().parents[2]
DUMPS = real_dumps()
NAMES = ("quickstart", "gpt_tiny_statistics", "gpt_tiny_tensor", "gpt_tiny_float16", "gpt_tiny_mix")
#: Dumps that one word of the page stands for.
TOGETHER = {"float32": ("gpt_tiny_statistics", "gpt_tiny_tensor", "gpt_tiny_mix")}
NO_ROW = "no row"
#: API call to (msProbe, ours): each both directions.
Differences = dict[str, tuple[str, str]]


def verdicts(folder: Path) -> dict[str, str]:
    (path,) = folder.glob("accuracy_checking_result*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        return {row["API Name"]: f"{row['Forward Test Success']}, {row['Backward Test Success']}" for row in rows}


def calls(text: str) -> Iterator[str]:
    """The calls of a cell: `Mint.rsqrt.0-1` is two."""
    for word in text.split():
        match = re.fullmatch(r"(.+)\.(\d+)-(\d+)", word)
        if match is None:
            yield word
        else:
            yield from (f"{match[1]}.{number}" for number in range(int(match[2]), int(match[3]) + 1))


def documented(dump: str, standard: str) -> Differences:
    found: Differences = {}
    for line in (ROOT / "docs" / "migration.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 5 or dump not in TOGETHER.get(cells[0], (cells[0],)):
            continue
        theirs, ours, backward_error = (NO_ROW, *cells[2:4]) if len(cells) == 5 else cells[2:5]
        verdict = ours if standard == "cosine-maxabs" else backward_error
        found.update({call: (theirs, verdict) for call in calls(cells[1]) if theirs != verdict})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("standard", ["cosine-maxabs", "backward-error"])
@pytest.mark.parametrize("dump", NAMES)
def test_the_page_names_every_difference(pytester: pytest.Pytester, dump: str, standard: str) -> None:
    pytester.runpytest_inprocess(
        f"--msprobe-dump={DUMPS / dump}", f"--msprobe-standard={standard}", "--msprobe-out=ours"
    )
    ours, theirs = verdicts(pytester.path / "ours"), verdicts(DUMPS / dump / "msprobe_26.2.0")
    assert theirs.keys() <= ours.keys()
    found = {call: (theirs.get(call, NO_ROW), verdict) for call, verdict in ours.items()}
    assert {call: pair for call, pair in found.items() if pair[0] != pair[1]} == documented(dump, standard)
