"""The page of docs that says how often the suite `sharded` is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quality.sharded.answers import Answer, summary
from quality.sharded.entries import Entry
from tools import ROOT

PAGE = ROOT / "quality" / "pages" / "sharded_quality.md"

_HEAD = (
    "# How often the first wrong place of a sharded run is found",
    "",
    "Written by `python -m quality.sharded --write-docs`; change the command, not this page. Small networks are trained",
    "for one step on 2 and 4 ranks of the CPU (gloo; MindSpore by msrun), and on one rank from the same parameters",
    "with the same batch. Right runs are tensor, sequence, expert, context, data and pipeline parallel, and mixtures,",
    "hand-made (autograd functions around collectives) and by PyTorch's own means (DTensor, FSDP2, DDP, pipelining).",
    "In the others one line is wrong, as it was reported of another project. A bug counts as *right* when the record",
    "that is named first is one of a short list that was written with the bug; *held out* are bugs that the suite was",
    "not mended on.",
    "",
)


def page_of(answers: Sequence[Answer]) -> str:
    """The page in Markdown."""
    return (
        "\n".join([*_HEAD, *(f"- {line}" for line in summary(answers)), "", *_bugs(answers), "", *_right(answers)])
        + "\n"
    )


def _bugs(answers: Sequence[Answer]) -> Iterator[str]:
    yield "| bug | reported of | ranks | found | named first | without a logical run |"
    yield "|---|---|---|---|---|---|"
    for one in answers:
        entry = one.entry
        if entry.change is not None:
            source = f"[{entry.source}]({entry.link})" if entry.link else entry.source
            name = f"{entry.name}: {entry.wrong}" if not entry.is_held_out else entry.name
            cells = name, source, _ranks(entry), one.verdict, f"`{one.named}`" if one.named else "", _alone(one)
            yield f"| {' | '.join(cells)} |"


def _right(answers: Sequence[Answer]) -> Iterator[str]:
    yield "| right run | ranks | values placed | blamed | seconds | without a logical run |"
    yield "|---|---|---:|---|---:|---|"
    for one in answers:
        if one.entry.change is None:
            placed = f"{one.states.get('placed', 0)} of {sum(one.states.values())}"
            named = one.verdict if not one.named else f"`{one.named}`"
            blamed = "" if one.verdict == "right" else named
            cells = one.entry.name, _ranks(one.entry), placed, blamed, f"{one.seconds:.1f}", _alone(one)
            yield f"| {' | '.join(cells)} |"


def _alone(answer: Answer) -> str:
    """What the laws name first; "" for nothing, as they should in a right run."""
    return f"`{answer.alone.named}`" if answer.alone is not None and answer.alone.named else ""


def _ranks(entry: Entry) -> str:
    return " x ".join(f"{name} {size}" for name, size in entry.sizes.items())
