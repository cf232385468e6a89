"""The advisor file: the first suspect and what to look at next, in the three lines that users know."""

from __future__ import annotations

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.answers import Answer
from pytest_msprobe.answers.words import headline, in_words, sentence_of


def suspect_of(answer: Answer) -> tuple[str, str]:
    """(record, value) that is wrong first; ("", "") where nothing is known to be."""
    place = answer.findings[0].place if answer.findings else None
    return (place.record, f"{place.record}.{place.value}".rstrip(".")) if place is not None else ("", "")


def advice(answer: Answer, line: int) -> str:
    """The content of the advisor file of one comparison; `line` of the table is where the suspect stands."""
    _, suspect = suspect_of(answer)
    sentence = sentence_of(answer.findings[0]) if answer.findings else headline(answer)
    # Of the answer of a whole run `next` collects what is missing, and not of each of its dumps.
    steps = [in_words(step) for step in answer.next if step.kind not in ("answer file", "collection")]
    text = printable(". ".join([sentence, *steps[:1]]))
    return f"Line: {line or 'NA'}\nSuspect Nodes: {printable(suspect) or 'NA'}\nExpert Advice: {text}\n"
