"""What the laws say of each training of the catalogue, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quality.laws.answers import Answer
from quality.results import Table


def table_of(answers: Sequence[Answer]) -> Table:
    """Return a row for each training; `law` is empty where it is right."""
    head = ("training", "framework", "half", "law", "reported of", "answer", "named first")
    return Table.of("laws", head, _rows(answers))


def _rows(answers: Sequence[Answer]) -> Iterator[tuple[str, ...]]:
    for one in sorted(answers, key=lambda answer: answer.entry.is_clean):
        entry = one.entry
        law = "" if entry.is_clean else entry.laws[0]
        named = f"{one.told[0].law}: {one.told[0].names[0]}" if one.told else ""
        half = "held out" if entry.is_held_out else "seen"
        yield entry.name, entry.framework, half, law, entry.source, one.verdict, named
