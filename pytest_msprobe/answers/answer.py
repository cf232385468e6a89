"""What a run amounts to as one value, the same for every suite and every command.

docs/ci.md has the table of outcomes and exit codes; `answer-2.schema.json` beside this file is the JSON Schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, structs

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.answers.finding import Exact, Finding, Gap, NextStep, Reach, SharedContent
from pytest_msprobe.verdicts import FigureWire

#: Version of the schema: another one where a reader of this one would read wrongly. New keys do not change it.
SCHEMA = 2
#: The JSON Schema of the file.
SCHEMA_FILE = Path(__file__).with_name("answer-2.schema.json")
#: Most characters of the headline.
MOST_HEADLINE = 90

Outcome = Literal["right", "wrong", "nothing judged"]
#: Exit code of pytest and of every command, by the outcome. Others are pytest's own: 2 interrupted, 3 internal error,
#: 4 used wrongly.
EXIT_CODES: dict[Outcome, int] = {"right": 0, "wrong": 1, "nothing judged": 5}


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted, and what a pass means."""

    kind: Annotated[
        str,
        Meta(
            description="what a pass shows: limits, standard, rounding, equal, noise, tolerance, finite, placed, hold, "
            "repeats, signs or passed"
        ),
    ] = "passed"
    judged: Annotated[int, Meta(description="items with a verdict")] = 0
    total: Annotated[int, Meta(description="all items")] = 0
    noun: Annotated[str, Meta(description="what the items are, in the plural")] = "records"
    differing: Annotated[int, Meta(description="items that differ at all, where that was counted")] = 0
    limits: Annotated[dict[str, float], Meta(description="limits of the standard, by figure")] = {}
    names: Annotated[tuple[str, ...], Meta(description="standards, or what values are known by")] = ()
    operands: Annotated[tuple[str, ...], Meta(description="few digits that the run allowed: TF32, float16 sums")] = ()


class About(msgspec.Struct, frozen=True, kw_only=True):
    """A dump that was judged, or that was held against it."""

    path: Annotated[str, Meta(description="as it was named")]
    side: Annotated[
        Literal["target", "golden", "exact"],
        Meta(description="golden: what the target is held to; exact: what both are held to"),
    ] = "target"
    script: Annotated[str, Meta(description="the command that made it; empty if unknown")] = ""
    time: Annotated[str, Meta(description="when it was made, in UTC; empty if unknown")] = ""


class TakenStep(msgspec.Struct, frozen=True):
    """One pytest run of `python -m pytest_msprobe diagnose`."""

    arguments: Annotated[tuple[str, ...], Meta(description="command line that repeats it")]
    outcome: Outcome
    headline: str


class Answer(FigureWire, msgspec.Struct, frozen=True, kw_only=True):
    """What a run amounts to. `words.said` fills in the texts, which are for people."""

    schema: Annotated[Literal[2], Meta(description="version of this form")] = 2
    suite: Annotated[str, Meta(description="which suite judged; diagnose: several, one after the other")]
    outcome: Annotated[
        Outcome,
        Meta(
            description="right: what was judged is right, and `open` names what was not; wrong: there is a finding; "
            "nothing judged: there is no verdict"
        ),
    ]
    headline: Annotated[str, Meta(max_length=MOST_HEADLINE, description="the answer in one line, for people")] = ""
    findings: Annotated[tuple[Finding, ...], Meta(description="what is wrong, the most important first")] = ()
    reach: Reach = Reach()
    open: Annotated[tuple[Gap, ...], Meta(description="what was not judged, why, and a way on")] = ()
    next: Annotated[tuple[NextStep, ...], Meta(description="what tells more, the most useful first")] = ()
    setup: Annotated[tuple[str, ...], Meta(description="how the two runs are set up differently")] = ()
    about: Annotated[tuple[About, ...], Meta(description="what was judged, then what it is held to")] = ()
    measure: Measure = Measure()
    counts: Annotated[dict[str, int], Meta(description="items by result: passed, failed, skipped, xfailed")] = {}
    steps: Annotated[tuple[TakenStep, ...], Meta(description="of diagnose: the runs that were made")] = ()
    basis: Annotated[
        str, Meta(description="of a comparison: what values are known by, such as tensors or statistics; else empty")
    ] = ""
    exact: Annotated[Exact | None, Meta(description="of --msprobe-exact: which run is nearer to the exact one")] = None
    content: Annotated[
        SharedContent | None, Meta(description="of a comparison of runs with different calls; else null")
    ] = None
    next_collection: Annotated[
        dict[str, Any] | None,
        Meta(description="what `python -m pytest_msprobe next` writes: calls, and config.json of both runs"),
    ] = None
    cut: Annotated[dict[str, int], Meta(description="entries left out of a list for its length, by its name")] = {}

    @property
    def exit_code(self) -> int:
        """Of the run that ends in this answer."""
        return EXIT_CODES[self.outcome]

    def _repr_html_(self) -> str:
        """Return the answer as a notebook shows it: with the texts that `words.said` has filled in."""
        texts = [f"{finding.name} {finding.how} {finding.detail}" for finding in self.findings]
        texts += [*map(attrgetter("text"), self.open), *map(attrgetter("tells"), self.next)]
        entries = "".join(f"<li>{escape(text)}</li>" for text in texts if text.strip())
        return f"<b>{escape(self.headline or self.outcome)}</b><ul>{entries}</ul>"


def with_findings(answer: Answer, findings: Sequence[Finding]) -> Answer:
    """`answer` with more findings, which make it wrong, behind those that it has; what is incomplete comes last, since
    what is damaged may have made it so.
    """
    if not findings:
        return answer
    ordered = sorted((*answer.findings, *findings), key=lambda finding: finding.kind == "incomplete")
    return structs.replace(answer, outcome="wrong", findings=tuple(ordered))


def with_open(answer: Answer, gaps: Sequence[Gap]) -> Answer:
    """`answer` with more that was not judged, in front of what it names already."""
    return structs.replace(answer, open=(*gaps, *answer.open)) if gaps else answer


def abridged(text: str, longest: int) -> str:
    """`text` on one line of at most so many characters, cut at its end."""
    line = " ".join(printable(text).split())
    return line if len(line) <= longest else f"{line[: longest - 3].rstrip()}..."


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `file.to_json`, which `SCHEMA_FILE` holds."""
    schema = msgspec.json.schema(Answer)
    for part in schema["$defs"].values():  # every key is written, also where it has a default
        part["required"] = list(part["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Answer of pytest-msprobe", **schema}
