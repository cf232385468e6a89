"""What a run of the suite `laws` amounts to: a CSV file, and which laws do not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from msprobe_laws.extension import MEANT_KEY
from msprobe_laws.law import listed
from pytest_msprobe.answers import Answer, Gap, RunRows
from pytest_msprobe.reports.csv_pair import WORDS, TableReport
from pytest_msprobe.suites.contract import RowSummary
from pytest_msprobe.verdicts import MOOT, StepPosition, VerdictRow

COLUMNS = ("Rank", "Step", "Part", "Law", "Status", "Parameter", "Size/Tolerance", "Source", "Message")
_SHOWN = 8


def law_of(call: str) -> str:
    """Return the law that an item asks, from the name of its call: `AdamW.step-counter`."""
    return call.rpartition(".")[2]


def subject_of(call: str) -> str:
    """Return what the law is asked of: an optimizer or its record, a model, clipping."""
    return call.rpartition(".")[0]


class LawsSummary(RowSummary):
    """Laws that do not hold, worst first, and how many were checked."""

    def __init__(self) -> None:
        self._broken: dict[str, list[VerdictRow]] = {}
        self._counts: Counter[str] = Counter()
        self._unchecked: dict[str, str] = {}
        self._unchecked_count = 0
        self._zero_gradients: set[Gap] = set()
        self._is_of_dump = False
        self._meant: dict[str, str] = {}

    def add(self, row: VerdictRow) -> None:
        is_moot = any(name == MOOT for name, _ in row.properties)
        self._counts["moot" if is_moot else row.status] += 1
        if row.status == "skip" and row.outputs:
            names = listed(output.label for output in row.outputs)
            self._zero_gradients.add(Gap(kind="zero gradient", what=names, reason=row.outputs[0].message))
        elif row.status == "skip" and not is_moot:
            law = law_of(row.call)
            self._unchecked[law] = min(row.message, self._unchecked.get(law, row.message))
            self._unchecked_count += 1
            self._is_of_dump |= not row.dump.endswith(".jsonl")
        self._meant.update((law_of(row.call), str(why)) for name, why in row.properties if name == MEANT_KEY)
        if row.status == "error":
            self._broken.setdefault(law_of(row.call), []).append(row)

    def lines(self) -> Iterator[str]:
        if not self._counts:
            return
        checked = self._counts["pass"] + self._counts["error"]
        yield from (f"meant: {law} does not hold ({why})" for law, why in sorted(self._meant.items()))
        broken = sorted(self._broken.items(), key=lambda entry: -max(_size(row) for row in entry[1]))
        skipped = f", {self._counts['skip']} not checked" if self._counts["skip"] else ""
        skipped += f", {self._counts['moot']} with nothing to check" if self._counts["moot"] else ""
        if not broken:
            hold = "all others hold" if self._meant else "all of them hold"
            yield f"{checked} checks of laws, {hold}{skipped}"
            return
        yield f"{len(broken)} laws do not hold ({checked} checks of laws{skipped})"
        for law, rows in broken[:_SHOWN]:
            worst = max(rows, key=_size)
            also = f" [and of {len(rows) - 1} more records]" if len(rows) > 1 else ""
            yield f"  {law}, {subject_of(worst.call)}: {worst.message}{also}"
        if len(broken) > _SHOWN:
            yield f"  and {len(broken) - _SHOWN} more laws"

    def answer(self, rows: RunRows) -> Answer:
        """Return what the rows amount to; laws that were not checked are named in one entry."""
        answer = rows.answer()
        return answer if rows.unreadable else structs.replace(answer, open=self.gaps())

    def gaps(self) -> tuple[Gap, ...]:
        """Return what is open: gradients that are 0 everywhere, then laws that were not checked."""
        unchecked = self.unchecked()
        gaps = sorted(self._zero_gradients, key=lambda gap: gap.what)
        return (*gaps, *([] if unchecked is None else [unchecked]))

    def unchecked(self) -> Gap | None:
        """Return which laws were not checked, why, and what to do; None where all were."""
        if not self._unchecked:
            return None
        laws = sorted(self._unchecked)  # workers give rows in any order
        reasons = dict.fromkeys(self._unchecked[law] for law in laws)
        if self._is_of_dump:
            reasons[_CHECK_MORE] = None
        what = f"law{'s' if len(laws) > 1 else ''} {', '.join(laws)}"
        return Gap(kind="not checked", what=what, reason="; ".join(reasons), count=self._unchecked_count)

    @property
    def checked(self) -> int:
        """How many items were judged."""
        return self._counts["pass"] + self._counts["error"]


_CHECK_MORE = "MSPROBE_LAWS=1 checks more while the script runs"


def _size(row: VerdictRow) -> float:
    return max((output.ratio or 0.0 for output in row.outputs), default=0.0)


class LawsReport(TableReport):
    """Writes `laws_result_{time}.csv`, row by row."""

    stem = "laws_result"
    columns = COLUMNS
    summary: LawsSummary

    def __init__(self, out: Path) -> None:
        """Make a report into the folder `out`, made when the first row comes."""
        super().__init__(out)
        self.summary = LawsSummary()

    def receive(self, name: str, row: VerdictRow) -> None:
        super().receive(name, row)
        place, worst = row.place or StepPosition(), row.worst
        where = [place.rank, place.step, subject_of(row.call), law_of(row.call), WORDS[row.status]]
        label, ratio = ("", None) if worst is None else (worst.label, worst.ratio)
        size = "" if ratio is None else f"{ratio:.3g}"
        cells = (*where, label, size, place.source, row.message)
        self.write([tuple("" if cell is None else cell for cell in cells)])

    def untested(self) -> str:
        """Return a run in which nothing could be checked says nothing."""
        return "" if self.summary.checked else "no law could be checked; the reasons of the skipped items say why"
