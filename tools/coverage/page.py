"""The page of coverage: counts per namespace, then every API with its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from tools.coverage.states import CoveredApi, State

_HEAD = """\
# Which APIs are judged, and by what

Written by `python -m tools.coverage` with MindSpore {mindspore} and PyTorch {torch};
run it to see what holds for yours. Public callables are found by looking at the installed MindSpore; states come from
the tables that a run itself asks.

| state | meaning |
|---|---|
| torch | PyTorch computes the benchmark in float64, by the call named (`adapters.…`: by several PyTorch calls) |
| mindspore | the MindSpore CPU computes the benchmark in float64 |
| reference | a float64 reference of ours does |
| law | random or uninitialised: its outputs are tested against the law named |
| none | not judged: skipped with the reason named |

A state describes the API, not every call: a dtype that PyTorch lacks or an argument that no engine knows is a skip
that says so.
"""


def coverage_page(apis: Sequence[CoveredApi], versions: Mapping[str, str]) -> str:
    """The page in Markdown; `versions` are those of `mindspore` and `torch`."""
    lines = [_HEAD.format(**versions), *_summary(apis), "", "## Why not", "", *_reasons(apis)]
    for namespace, members in groupby(apis, key=lambda item: item.api.namespace):
        lines += ["", f"## {namespace}", "", "| API | state | by, or why not |", "|---|---|---|"]
        lines += [f"| {item.api.name} | {item.state.value} | {_cell(item.by)} |" for item in members]
    return "\n".join(lines) + "\n"


def _summary(apis: Sequence[CoveredApi]) -> Iterator[str]:
    states = [state.value for state in State]
    yield f"| namespace | APIs | {' | '.join(states)} | judged |"
    yield f"|---{'|---:' * (len(states) + 2)}|"
    counts: dict[str, Counter[State]] = {}
    for item in apis:
        counts.setdefault(item.api.namespace, Counter())[item.state] += 1
    for namespace, count in counts.items():
        cells = " | ".join(str(count[state]) for state in State)
        judged = 1 - count[State.NONE] / count.total()
        yield f"| {namespace} | {count.total()} | {cells} | {judged:.1%} |"


def _reasons(apis: Sequence[CoveredApi]) -> Iterator[str]:
    count = Counter(_kind(item.by) for item in apis if item.state is State.NONE)
    yield "| reason | APIs |"
    yield "|---|---:|"
    yield from (f"| {_cell(reason)} | {number} |" for reason, number in count.most_common())


def _kind(reason: str) -> str:
    """Reasons that differ only in what stands in brackets are one."""
    head, bracket, tail = reason.partition("(")
    return head + "…" + tail.partition(")")[2] if bracket else reason


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
