"""In what order things happened on several ranks: their communications, matched, are the only common clock.

All calls of one collective, or a send and its receive, get one layer; a communication's layer is above that of the one
before it on each of its ranks. What a rank computes lies above its last communication. So of two records on two ranks,
one of which can have caused the other, the cause has the lower layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.overflow.record_values import OverflowDump
from pytest_msprobe.overflow.survey import is_communication

#: Calls in communication modules that send nothing.
_LOCAL = frozenset("barrier get_rank get_world_size get_backend new_group is_initialized init_process_group".split())
_SENDS = frozenset({"send", "isend", "send_object_list"})
_RECEIVES = frozenset({"recv", "irecv", "recv_object_list"})


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
    seen: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    found: dict[str, tuple[Meeting, ...]] = {}
    for record in dump.record_names:
        api = record.rpartition(".forward")[0].rpartition(".")[0].rpartition(".")[2]
        if not is_communication(record) or not api or api in _LOCAL:
            continue
        here = []
        for key in _keys_of(dump, record, api, rank):
            here.append(Meeting(*key, seen[key]))
            seen[key] += 1
        found[record] = tuple(here)
    return found


def _keys_of(dump: OverflowDump, record: str, api: str, rank: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    try:
        encoded = dump.decoded(record)
    except DumpError:
        return  # its own item reports it
    arguments = encoded.get("input_args", []) if isinstance(encoded, dict) else []
    keywords = encoded.get("input_kwargs", {}) if isinstance(encoded, dict) else {}
    # In one order on all ranks, or two that exchange a batch would wait for each other.
    messages = sorted(
        (rank, peer) if is_sent else (peer, rank) for is_sent, peer in _messages(api, arguments, keywords)
    )
    for ends in messages:
        yield "send", ends, ""
    if not messages:
        yield api, *_group(arguments, keywords)


def _messages(api: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[tuple[bool, int]]:
    """(whether it is sent, the other rank) of point-to-point calls."""
    if api == "batch_isend_irecv":
        operations = arguments[0] if arguments else keywords.get("p2p_op_list", [])
        for operation in operations if isinstance(operations, list) else []:
            peer = _number(operation.get("peer")) if isinstance(operation, dict) else None
            if peer is not None:
                yield "send" in str(operation.get("op")), peer
    elif api in _SENDS or api in _RECEIVES:
        is_sent = api in _SENDS
        given = keywords.get("dst" if is_sent else "src", arguments[1] if len(arguments) > 1 else None)
        peer = _number(given)
        yield is_sent, 0 if peer is None else peer  # both frameworks take rank 0 by default


def _group(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    """(ranks, name) of the group of a collective, as far as its arguments tell."""
    for value in (*keywords.values(), *arguments):
        if isinstance(value, dict) and isinstance(value.get("group_ranks"), list):
            return tuple(rank for rank in value["group_ranks"] if isinstance(rank, int)), ""
    named = keywords.get("group")
    if isinstance(named, dict) and isinstance(named.get("value"), str):
        return (), named["value"]
    texts = [value["value"] for value in arguments if isinstance(value, dict) and value.get("type") == "str"]
    return (), next((text for text in texts if isinstance(text, str) and "group" in text), "")


def _number(value: Any) -> int | None:
    if isinstance(value, dict):
        value = value.get("value")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def layers(ranks: Mapping[int, Mapping[str, Sequence[Meeting]]]) -> dict[tuple[int, str], int]:
    """The layer of every communication by (rank, record), from 1 on.

    A meeting that not all its ranks reach, as in dumps of killed runs, counts for those alone that wait for it.
    """
    queues = {
        rank: [(record, meeting) for record, all_ in found.items() for meeting in all_] for rank, found in ranks.items()
    }
    expected = Counter(meeting for queue in queues.values() for _, meeting in queue)
    at = dict.fromkeys(queues, 0)
    clock = dict.fromkeys(queues, 0)
    passed: dict[Meeting, int] = {}
    found: dict[tuple[int, str], int] = {}
    while waiting := {rank: queue[at[rank]] for rank, queue in queues.items() if at[rank] < len(queue)}:
        meeting, ready = _next(waiting, expected)
        layer = 1 + max(passed.get(meeting, 0), *(clock[rank] for rank in ready))
        passed[meeting] = layer
        for rank in ready:
            clock[rank] = layer
            found[rank, waiting[rank][0]] = layer
            at[rank] += 1
    return found


def _next(waiting: Mapping[int, tuple[str, Meeting]], expected: Mapping[Meeting, int]) -> tuple[Meeting, list[int]]:
    """A meeting that nobody is missing from, with its ranks; else one that can go on alone, as an isend can."""
    here: defaultdict[Meeting, list[int]] = defaultdict(list)
    for rank, (_, meeting) in waiting.items():
        here[meeting].append(rank)
    complete = next((meeting for meeting, ranks in here.items() if len(ranks) == expected[meeting]), None)
    sent = next(
        (meeting for meeting, ranks in here.items() if _is_sent(meeting) and ranks[0] == meeting.members[0]), None
    )
    chosen = complete or sent or next(iter(here))
    return chosen, here[chosen]


def _is_sent(meeting: Meeting) -> bool:
    return meeting.kind == "send" and len(meeting.members) == 2
