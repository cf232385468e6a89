"""The first anomaly of a training step across its ranks, whose communications, matched, are the only common clock.

All calls of one collective, or a send and its receive, get one layer; a communication's layer is above that of the one
before it on each of its ranks. What a rank computes lies above its last communication. So of two records on two ranks,
one of which can have caused the other, the cause has the lower layer.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import DumpError, OpaqueValue, PlainValue, Value, is_communication
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.leaves import flatten
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import ARGUMENTS, KEYWORDS
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import says_where
from pytest_msprobe.suites.overflow.survey import Survey, SurveyedRecord
from pytest_msprobe.suites.overflow.values import OverflowDump
from pytest_msprobe.verdicts import Wire


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the ranks of one communication agree on: its kind, its members, and which of that kind it is.

    Attributes:
        kind: name of the API; `send` for both ends of a message.
        members: ranks as far as the call tells; (sender, receiver) of a message; () when it does not.
        group: name of the group, "" without one.
        number: counts meetings of one kind, members and group.
    """

    kind: str
    members: tuple[int, ...]
    group: str
    number: int


def meetings(dump: OverflowDump, rank: int) -> dict[str, tuple[Meeting, ...]]:
    """The communications of one rank by record, in the order of execution."""
    counts: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    meetings_: dict[str, tuple[Meeting, ...]] = {}
    for record in dump.record_names:
        api = record.rpartition(".forward")[0].rpartition(".")[0].rpartition(".")[2]
        if not is_communication(record) or not api or _kind(api) == "local":
            continue
        here = []
        for key in _keys_of(dump, record, api, rank):
            here.append(Meeting(*key, counts[key]))
            counts[key] += 1
        meetings_[record] = tuple(here)
    return meetings_


def _keys_of(dump: OverflowDump, record: str, api: str, rank: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    try:
        fields = dump.record(record).fields
    except DumpError:
        return  # its own item reports it
    arguments, keywords = fields.get(ARGUMENTS), fields.get(KEYWORDS)
    if not isinstance(arguments, tuple):
        arguments = ()
    if not isinstance(keywords, dict):
        keywords = {}
    messages = list(_messages(api, rank, arguments, keywords))
    # In one order on all ranks, or two that exchange a batch would wait for each other.
    for ends in sorted(messages):
        yield "send", ends, ""
    if not messages:
        yield api, *_group(f"Distributed.{api}", arguments, keywords)


def _messages(
    api: str, rank: int, arguments: Sequence[Value], keywords: Mapping[str, Value]
) -> Iterator[tuple[int, int]]:
    """(sender, receiver) of the point-to-point calls of a rank."""
    kind = _kind(api)
    if kind == "messages":
        operations = arguments[0] if arguments else keywords.get("p2p_op_list")
        for operation in operations if isinstance(operations, tuple) else ():
            parts = operation.parts if isinstance(operation, OpaqueValue) else operation
            peer = _number(parts.get("peer")) if isinstance(parts, Mapping) else None
            if isinstance(parts, Mapping) and peer is not None:
                yield (rank, peer) if "send" in str(_content(parts.get("op"))) else (peer, rank)
    elif kind in ("send", "receive"):
        # Both frameworks take rank 0 by default.
        values = [*arguments[1:2], None]
        if kind == "send":
            yield rank, _number(keywords.get("dst", values[0])) or 0
        else:
            yield _number(keywords.get("src", values[0])) or 0, rank


def _kind(api: str) -> str:
    """What a communication call does: `local`, `send`, `receive`, `messages`, or "" for a collective."""
    meaning = facts("communication").word(api)
    return meaning.text if meaning else ""


def _group(operation: str, arguments: Sequence[Value], keywords: Mapping[str, Value]) -> tuple[tuple[int, ...], str]:
    """(ranks, name) of the group of a collective, as far as its arguments tell."""
    places = [(f"input.{key}", value) for key, value in (*keywords.items(), *enumerate(arguments))]
    of_place = [value for path, value in places if says_where(operation, path, value)]
    for value in of_place:
        if isinstance(value, OpaqueValue) and isinstance(value.content, list):
            return tuple(rank for rank in value.content if isinstance(rank, int)), ""
    texts = (value.value for value in of_place if isinstance(value, PlainValue))
    return (), next((text for text in texts if isinstance(text, str)), "")


def _number(value: Value) -> int | None:
    number = _content(value)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _content(value: Value) -> Any:
    """The plain value that stands there, also one that is written without a type."""
    if isinstance(value, PlainValue):
        return value.value
    return value.content if isinstance(value, OpaqueValue) else None


def layers(ranks: Mapping[int, Mapping[str, Sequence[Meeting]]]) -> dict[tuple[int, str], int]:
    """The layer of every communication by (rank, record), from 1 on.

    A meeting that not all its ranks reach, as in dumps of killed runs, counts for those alone that wait for it.
    """
    queues = {}
    expected = Counter[Meeting]()
    for rank, by_record in ranks.items():
        queues[rank] = [(record, meeting) for record, all_ in by_record.items() for meeting in all_]
        expected.update(chain.from_iterable(by_record.values()))
    at = dict.fromkeys(queues, 0)
    clock = dict.fromkeys(queues, 0)
    passed: dict[Meeting, int] = {}
    layers_: dict[tuple[int, str], int] = {}
    while waiting := {rank: queue[at[rank]] for rank, queue in queues.items() if at[rank] < len(queue)}:
        meeting, ready = _next(waiting, expected)
        layer = 1 + max(passed.get(meeting, 0), *(clock[rank] for rank in ready))
        passed[meeting] = layer
        for rank in ready:
            clock[rank] = layer
            layers_[rank, waiting[rank][0]] = layer
            at[rank] += 1
    return layers_


def _next(waiting: Mapping[int, tuple[str, Meeting]], expected: Mapping[Meeting, int]) -> tuple[Meeting, list[int]]:
    """A meeting that nobody is missing from, with its ranks; else one that can go on alone, as an isend can."""
    here: defaultdict[Meeting, list[int]] = defaultdict(list)
    for rank, (_, meeting) in waiting.items():
        here[meeting].append(rank)
    chosen = next(iter(here))
    for meeting, ranks in reversed(here.items()):
        if meeting.kind == "send" and meeting.members[:1] == (ranks[0],):
            chosen = meeting
    for meeting, ranks in reversed(here.items()):
        if len(ranks) == expected[meeting]:
            chosen = meeting
    return chosen, here[chosen]


_RANK_FOLDER = re.compile(r"rank_?\d*|proc\d+")


@dataclass(frozen=True, slots=True)
class RankAnomaly:
    """Where a rank goes wrong first.

    Attributes:
        rank, dump, record: where it is; `dump` is the path of the dump.json.
        level: `origin`, or `propagated` when no record made what the first one passes on.
        values: what is not finite, one text each.
        first_value: place of the first of them in the record, `output.0`.
        cells: Cells that it ran in, outermost first.
        stack: call stack, innermost frame first.
        called_from: the line that made the call, "" where it is not known.
        communications: how many communications are known to come before it.
        parameters: those that are not finite and go into it, and what each of them holds.
    """

    rank: int
    dump: str
    record: str
    level: str
    values: list[str]
    first_value: str
    cells: list[str]
    stack: list[str]
    called_from: str
    communications: int
    parameters: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.parameters:
            held = (f"parameter {name} holds {what}" for name, what in self.parameters.items())
            return f"rank {self.rank}, {', '.join(held)}, in {self.record}"
        what = "" if self.level == "origin" else ", which passes on what no record made: collect its producer"
        return f"rank {self.rank}, {self.record}{what}"


@dataclass(frozen=True, slots=True)
class StepAnomalies(Wire):
    """The first anomaly of each rank of a step.

    Attributes:
        folder: of the step.
        step: its number, None where the folder does not say.
        anomalies: the earliest first; empty when there is none.
        unjudged: dumps and records that cannot be read, or do not tell.
    """

    folder: str
    step: int | None
    anomalies: list[RankAnomaly]
    unjudged: int

    @property
    def headline(self) -> str:
        """One line."""
        place = f"step {self.step}" if self.step is not None else self.folder
        if not self.anomalies:
            unjudged = f"; {self.unjudged} dumps or records could not be judged" if self.unjudged else ""
            return f"no anomaly in {place}: no NaN or Inf is left{unjudged}"
        return f"first anomaly of {place}: {self.anomalies[0]}"

    def details(self) -> Iterator[str]:
        """What is not finite there, where it was called, and what goes wrong on other ranks first."""
        first, *others = self.anomalies
        yield from map("  {}".format, first.values)
        if first.cells:
            yield f"  in {' > '.join(first.cells)}"
        if first.called_from:
            yield f"  called from {first.called_from}"
        for other in others:
            order = "not ordered by any communication" if other.communications == first.communications else "later"
            yield f"  {order}: {other}"


def step_folder(path: Path) -> Path:
    """The folder that the ranks of one step share, for the dump at `path`; the dump's own for one without ranks."""
    folder = path.parent
    return folder.parent if _RANK_FOLDER.fullmatch(folder.name) else folder


def steps_of(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    """The dumps of each step folder, by rank."""
    steps: dict[Path, list[Path]] = {}
    for path in paths:
        steps.setdefault(step_folder(path), []).append(path)
    for of_step in steps.values():
        of_step.sort(key=lambda path: (Slot.of(path).rank or 0, str(path)))
    return steps


def rank_numbers(paths: Sequence[Path]) -> dict[Path, int]:
    """The rank of each dump of one step: the number in its folder's name, its place among the others without one."""
    numbers = {}
    for place, path in enumerate(paths):
        rank = Slot.of(path).rank if path.parent.name.startswith("rank") else None
        numbers[path] = place if rank is None else rank
    return numbers


def first_anomalies(ranks: Sequence[tuple[int, Survey]]) -> list[RankAnomaly]:
    """The first anomaly of each rank that has one; the earliest rank's first.

    An origin goes before a record that only passes on what nobody made, whatever the order. Those of one layer are not
    ordered by any communication: then that comes first which has fewer records after its rank's last communication.
    """
    layer_of = layers({rank: meetings(survey.dump, rank) for rank, survey in ranks})
    anomalies = []
    for rank, survey in ranks:
        if survey.first is not None:
            layer, gap = _place(rank, survey, survey.first, layer_of)
            anomalies.append((gap, _anomaly(rank, survey, survey.first, layer)))
    anomalies.sort(key=lambda entry: (entry[1].level != "origin", entry[1].communications, entry[0], entry[1].rank))
    return [anomaly for _, anomaly in anomalies]


def _place(
    rank: int, survey: Survey, record: SurveyedRecord, layer_of: Mapping[tuple[int, str], int]
) -> tuple[int, int]:
    """(layer of the last communication up to `record` itself, number of records since)."""
    layer = gap = 0
    for name in survey.records:
        gap += 1
        if (rank, name) in layer_of:
            layer, gap = layer_of[rank, name], 0
        if name == record.operation.record:
            break
    return layer, gap


def bad_parameters(survey: Survey, record: SurveyedRecord) -> dict[str, str]:
    """Return the parameters that go into a record and are not finite, and what they hold: NaN, Inf or both.

    Their names are those that the collector noted, else those of the innermost layer that has such ones.
    """
    name = record.operation.record
    bad = {value.path: value.finiteness.kinds for value in record.bad if value.is_input}
    if not bad:
        return {}
    leaves = [leaf for leaf in flatten(survey.dump.record(name)) if leaf.path in bad]
    if noted := {leaf.provenance.leaf: bad[leaf.path] for leaf in leaves if leaf.provenance.leaf}:
        return noted
    for cell in (name, *reversed(survey.dump.ancestors(name))):
        layer = Operation.of(cell, 0).name.partition(".")[2].rpartition(".")[0]
        values = survey.records[cell].bad if cell in survey.records else ()
        of_layer = (value for value in values if value.path.startswith(_PARAMETERS))
        held = {f"{layer}.{value.path.removeprefix(_PARAMETERS)}": value.finiteness.kinds for value in of_layer}
        if held:
            return held
    return {}


#: Front of the paths of the parameters in the record of a layer.
_PARAMETERS = "parameters."


def _anomaly(rank: int, survey: Survey, record: SurveyedRecord, layer: int) -> RankAnomaly:
    name, dump = record.operation.record, survey.dump
    return RankAnomaly(
        rank,
        str(dump.path),
        name,
        record.level,
        values=list(map(str, record.bad)),
        first_value=next(map(attrgetter("path"), record.bad), ""),
        cells=list(dump.ancestors(name)),
        stack=list(map(str, dump.frames(record.operation))),
        called_from=dump.called_from(record.operation),
        communications=layer,
        parameters={} if record.level == "origin" else bad_parameters(survey, record),
    )
