"""What the suite `sharded` says of each entry, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from quality.results import Table
from quality.sharded.answers import Answer
from quality.sharded.entries import Entry


def tables_of(answers: Sequence[Answer]) -> tuple[Table, Table]:
    """Return what is said of bugs, and of right runs."""
    bugs = ("bug", "reported of", "ranks", "answer", "named first", "without a logical run")
    right = ("right run", "ranks", "values placed", "blamed", "seconds", "without a logical run")
    return Table.of("sharded_bugs", bugs, _bugs(answers)), Table.of("sharded_right_runs", right, _right(answers))


def outside_table(answers: Sequence[Answer], first: Mapping[str, str]) -> Table:
    """Return what is said of entries written outside, beside their `first` answers, which stay."""
    head = ("entry", "ranks", "first answer", "answer", "named first", "without a logical run")
    rows = (
        (one.entry.name, _ranks(one.entry), first.get(one.entry.name, one.verdict), one.verdict, one.named, _alone(one))
        for one in answers
    )
    return Table.of("sharded_outside", head, rows)


def _bugs(answers: Sequence[Answer]) -> Iterator[tuple[str, ...]]:
    for one in answers:
        entry = one.entry
        if entry.change is not None:
            name = entry.name if entry.is_held_out else f"{entry.name}: {entry.wrong}"
            yield name, entry.source, _ranks(entry), one.verdict, one.named, _alone(one)


def _right(answers: Sequence[Answer]) -> Iterator[tuple[str, ...]]:
    for one in answers:
        if one.entry.change is None:
            placed = f"{one.states.get('placed', 0)} of {sum(one.states.values())}"
            blamed = "" if one.verdict == "right" else one.named or one.verdict
            yield one.entry.name, _ranks(one.entry), placed, blamed, f"{one.seconds:.1f}", _alone(one)


def _alone(answer: Answer) -> str:
    """What the laws name first; "" for nothing, as they should in a right run."""
    return answer.alone.named if answer.alone is not None else ""


def _ranks(entry: Entry) -> str:
    return " x ".join(f"{name} {size}" for name, size in entry.sizes.items())
