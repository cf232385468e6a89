"""What the accounting answers to pairs, against what was planted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from diagnosing import diagnose

from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis
from quality.accounting.foreign.pairs import Answer
from quality.accounting.foreign.writing import Pairs

#: `exact`: the cause and nothing else. `right first`: innocent names behind it. `innocent first`: before it.
#: `not found`: innocent names alone, or `unaccounted` where the cause can be computed.
#: `false all-clear`: `rounding` or `equal` over a planted cause. `blamed`: a clean pair.
Verdict = Literal["exact", "right first", "innocent first", "not found", "false all-clear", "blamed", "error"]
_VALUES = ("parameter", "batch", "constant")
_AT_CALLS = ("gradient", "unrecorded", "rewired", "unknown")


def described(fault: Fault) -> list[str]:
    """By what a fault may be known: a value by kind and name, another one by kind and call, a call by its records."""
    if fault.kind in _VALUES:
        return [f"{fault.kind} {fault.name}".strip()]
    call = fault.step.operation.call
    if fault.kind in _AT_CALLS:
        return [f"{fault.kind} {call}"]
    return [call, *(fault.records or [fault.step.record])]


def is_expected(names: Sequence[str], expected: Iterable[str]) -> bool:
    """Whether one of the names is."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in expected)


def verdict_of(outcome: str, faults: Sequence[Sequence[str]], expected: Sequence[str], answer: Answer) -> Verdict:
    """What an answer is worth.

    Args:
        outcome: of the diagnosis.
        faults: what each is known by, first ones first.
        expected: what may be named.
        answer: what should be found.
    """
    if answer == "nothing":
        return "blamed" if faults else "exact"
    if not faults:
        if outcome in ("rounding", "equal"):
            return "false all-clear"
        return "exact" if answer == "unaccounted" else "not found"
    right = [is_expected(names, expected) for names in faults]
    if not any(right):
        return "not found"
    if all(right):
        return "exact"
    return "right first" if right[0] else "innocent first"


@dataclass(frozen=True)
class Row:
    """A pair with its answer.

    Attributes:
        name, kind, framework, half: of the pair.
        verdict: see `Verdict`.
        outcome: of the diagnosis.
        named: what is at fault.
        expected: what may be.
        unknown, unexplained: how many values and records are left over.
        seconds: that it took.
    """

    name: str
    kind: str
    framework: str
    half: str
    verdict: Verdict
    outcome: str
    named: tuple[str, ...]
    expected: tuple[str, ...]
    unknown: int = 0
    unexplained: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """One line."""
        named = "; ".join(self.named[:4]) + (f"; and {len(self.named) - 4} more" if len(self.named) > 4 else "")
        expected = " or ".join(self.expected[:3]) + (" or ..." if len(self.expected) > 3 else "")
        left = f", {self.unknown} unknown, {self.unexplained} unexplained" if self.unknown or self.unexplained else ""
        return (
            f"{self.verdict:15} {self.kind:12} {self.framework:9} {self.name} | {self.outcome}: {named or 'nothing'}"
            f"{left} | expected: {expected or 'nothing'} | {self.seconds:.1f} s"
        )


def answered(pairs: Pairs, name: str) -> Row:
    """The answer to one pair."""
    entry, started = pairs[name], time.monotonic()
    try:
        found: RunDiagnosis = diagnose(pairs.folder / entry["target"], pairs.folder / entry["golden"])
    except Exception as error:  # an accounting that fails is an answer, too
        return _row(name, entry, "error", f"{type(error).__name__}: {error}", (), seconds=time.monotonic() - started)
    names = [described(fault) for fault in found.faults]
    shown = tuple(
        f"{' / '.join(one) if fault.kind in (*_VALUES, *_AT_CALLS) else fault.step.record} ({fault.kind})"
        for one, fault in zip(names, found.faults)
    )
    verdict = verdict_of(found.outcome, names, entry["expected"], entry["answer"])
    left = (len(found.unknown), len(found.unexplained))
    return _row(name, entry, verdict, found.outcome, shown, *left, seconds=time.monotonic() - started)


def _row(name: str, entry: dict[str, object], verdict: Verdict, outcome: str, named: tuple[str, ...],
         unknown: int = 0, unexplained: int = 0, *, seconds: float) -> Row:  # fmt: skip
    kind, framework, half = (str(entry[key]) for key in ("kind", "framework", "half"))
    expected = entry["expected"]
    assert isinstance(expected, list)
    return Row(
        name, kind, framework, half, verdict, outcome, named, tuple(expected), unknown, unexplained, round(seconds, 1)
    )


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Counts, all together and by kind."""
    planted, clean = [row for row in rows if row.kind != "clean"], [row for row in rows if row.kind == "clean"]
    for title, some in (
        ("planted", planted),
        *((f"  {one}", [row for row in planted if row.framework == one]) for one in ("pytorch", "mindspore")),
        *(
            (f"  {kind}", [row for row in planted if row.kind == kind])
            for kind in dict.fromkeys(r.kind for r in planted)
        ),
    ):
        counts = Counter(row.verdict for row in some)
        if some:
            shown = ", ".join(f"{verdict} {number}" for verdict, number in counts.most_common())
            yield f"{title}: {counts['exact']} of {len(some)} exact and alone ({shown})"
    yield f"clean: {sum(row.verdict != 'exact' for row in clean)} of {len(clean)} blamed; " + ", ".join(
        f"{outcome} {number}" for outcome, number in Counter(row.outcome for row in clean).most_common()
    )
