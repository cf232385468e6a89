"""The advisor file: the first suspect and what to look at next, in the three lines that users know."""

from __future__ import annotations

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.answers import Answer, Finding
from pytest_msprobe.answers.words import headline, in_words, sentence_of


def value_of(finding: Finding) -> str:
    """`Mint.exp.0.forward.output.0`, as the table names it."""
    return f"{finding.place.record}.{finding.place.value}".rstrip(".")


def advice(answer: Answer, suspect: Finding | None, line: int) -> str:
    """The content of the advisor file of one dump; `line` of the table is where the `suspect` of the answer stands."""
    name = printable(value_of(suspect)) if suspect is not None else "NA"
    sentence = sentence_of(suspect) if suspect is not None else headline(answer)
    text = printable(". ".join([sentence, *map(in_words, answer.next[:1])]))
    return f"Line: {line or 'NA'}\nSuspect Nodes: {name}\nExpert Advice: {text}\n"
