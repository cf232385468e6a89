"""Laws of communication: what comes out of collectives and messages is what went in."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import is_communication
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.apis.topics import text_of
from pytest_msprobe.numerics.expected import Roundoffs
from pytest_msprobe.suites.sharded.inference import MESSAGES, Call, Spread, alike, plain, tensors
from pytest_msprobe.suites.sharded.judgement import ValueFinding, roundoff_of
from pytest_msprobe.suites.sharded.ranks import RankDump

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_OPERATION = re.compile(r"(?:RedOpType|ReduceOp)\.(\w+)|^(sum|avg|max|min|product|prod|mul)$", re.IGNORECASE)
#: Functional collectives, whose dimension follows the tensor, or the reduction.
_ALONG = ("all_gather_single", "reduce_scatter_single")


class Collectives:
    """What comes out of a collective is what went in on all ranks of its group, reduced as it says."""

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings on the outputs."""
        made = getattr(self, f"_{call.operation.bare.strip('_')}", None)
        if not is_communication(call.operation.record) or made is None:
            return
        group = call.spread.group_of(call.dump, call.operation.record)
        outputs = [path for path in call.leaves[call.dump.number] if path.startswith("output.")]
        lacking = [rank for rank in group if rank not in call.records]
        if call.dump.number not in group:
            yield from (
                call.found(path, "missing", "its rank is not in the group that it names") for path in outputs[:1]
            )
            return
        if lacking:
            words = f"rank {lacking[0]} of its group has no such call, or other numbers of them"
            yield from (call.found(path, "missing", words) for path in outputs[:1])
            return
        forms = {rank: _Form.of(call, rank) for rank in group}
        if any(form is None for form in forms.values()):
            return
        if not all(leaf.data_name for rank in group for leaf in call.leaves[rank].values()):
            yield from (call.found(path, "unjudged", "its law needs tensors") for path in outputs[:1])
            return
        known = {rank: form for rank, form in forms.items() if form is not None}
        for place, rank in enumerate(group):
            wrong = self._wrong(call, (rank, place), known, made)
            if wrong is not None:
                yield wrong
                return
        form = known[call.dump.number]
        kind = "R" if call.operation.bare in ("all_reduce", "broadcast", "all_gather") else "as communicated"
        yield from (call.found(path, "placed", placement=kind) for path in form.outputs)

    @staticmethod
    def _wrong(call: Call, at: tuple[int, int], forms: dict[int, _Form], made: Any) -> ValueFinding | None:
        import numpy as np

        rank, place = at
        try:
            expected, allowed = made(call, place, forms)
        except (ValueError, IndexError):  # of shapes or numbers of tensors that no such call has
            expected, allowed = None, 0.0
        found = [call.array(rank, path) for path in forms[rank].outputs]
        out = forms[rank].outputs[0]
        if expected is None or sum(one.size for one in found) != sum(one.size for one in expected):
            return call.found(out, "unjudged", "no law is known of a call with such tensors and options")
        left, right = (np.concatenate([one.ravel() for one in values]) for values in (found, expected))
        away, size = float(np.linalg.norm(left - right)), float(np.linalg.norm(right))
        if not np.isfinite(right).all():
            return call.found(out, "unjudged", "what went in is not finite, so that its sum tells nothing")
        if away <= allowed:
            return None
        words = (
            f"what came out on rank {rank} is not what went in on ranks {listed(forms)}: "
            f"{away / size if size else math.inf:.3g} away"
        )
        tolerance = allowed / size if size else 0.0
        return call.found(out, "unexplained", words, distance=away / (size or 1), tolerance=tolerance)

    @staticmethod
    def _all_reduce(call: Call, place: int, forms: dict[int, _Form]) -> tuple[list[Array] | None, float]:
        return _reduced([call.array(rank, form.inputs[0]) for rank, form in forms.items()], forms)

    @staticmethod
    def _reduce_scatter(call: Call, place: int, forms: dict[int, _Form]) -> tuple[list[Array] | None, float]:
        return _reduced([call.array(rank, form.inputs[place]) for rank, form in forms.items()], forms)

    @staticmethod
    def _reduce_scatter_tensor(call: Call, place: int, forms: dict[int, _Form]) -> tuple[list[Array] | None, float]:
        import numpy as np

        own = [
            np.array_split(call.array(rank, form.inputs[0]), len(forms), form.dimension) for rank, form in forms.items()
        ]
        return _reduced([parts[place] for parts in own], forms)

    _reduce_scatter_single = _reduce_scatter_tensor

    @staticmethod
    def _all_gather(call: Call, place: int, forms: dict[int, _Form]) -> tuple[list[Array] | None, float]:
        import numpy as np

        parts = [call.array(rank, form.inputs[0]) for rank, form in forms.items()]
        dimension = forms[next(iter(forms))].dimension
        return ([np.concatenate(parts, dimension)] if dimension else parts), 0.0

    _all_gather_into_tensor = _all_gather_single = _all_gather

    @staticmethod
    def _all_to_all(call: Call, place: int, forms: dict[int, _Form]) -> tuple[list[Array] | None, float]:
        return [call.array(rank, form.inputs[place]) for rank, form in forms.items()], 0.0

    @staticmethod
    def _all_to_all_single(call: Call, place: int, forms: dict[int, _Form]) -> tuple[list[Array] | None, float]:
        import numpy as np

        found = []
        for rank, form in forms.items():
            whole = np.atleast_1d(call.array(rank, form.inputs[0]))
            sizes = form.splits or [len(whole) // len(forms)] * len(forms)
            if not all(size >= 0 for size in sizes) or sum(sizes) != len(whole):
                return None, 0.0
            found.append(np.split(whole, np.cumsum(sizes)[:-1])[place])
        return found, 0.0

    @staticmethod
    def _broadcast(call: Call, place: int, forms: dict[int, _Form]) -> tuple[list[Array] | None, float]:
        source = forms[next(iter(forms))].source
        return ([call.array(source, forms[source].inputs[0])], 0.0) if source in forms else (None, 0.0)


def listed(ranks: Any) -> str:
    """The first numbers of ranks, for people."""
    numbers = list(ranks)
    return f"{', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''}"


def _reduced(parts: Sequence[Array], forms: dict[int, _Form]) -> tuple[list[Array] | None, float]:
    """The parts put together as the call says, and how far rounding may take a result from that."""
    import numpy as np

    form = next(iter(forms.values()))
    if len({part.shape for part in parts}) > 1:
        return None, 0.0
    size = float(np.linalg.norm(np.sum([abs(part) for part in parts], axis=0)))
    allowed = Roundoffs.SUM_OVER_RANKS * len(parts) * form.roundoff * size
    if form.operation in ("SUM", "AVG"):
        total = np.sum(parts, axis=0)
        return [total / len(parts) if form.operation == "AVG" else total], allowed
    if form.operation in ("MAX", "MIN"):
        return [(np.maximum if form.operation == "MAX" else np.minimum).reduce(parts)], 0.0
    return None, 0.0


@dataclass(frozen=True, slots=True)
class _Form:
    """Which values of a collective's record are what, on one rank.

    Attributes:
        inputs, outputs: places of what goes in and comes out.
        operation: of a reduction, upper case.
        roundoff: of the dtype.
        splits: rows for each rank of all_to_all_single; () for equal ones.
        source: the rank that broadcasts; -1 where it is not known.
        dimension: along which a functional collective joins or splits.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operation: str
    roundoff: float
    splits: tuple[int, ...]
    source: int
    dimension: int

    @classmethod
    def of(cls, call: Call, rank: int) -> _Form | None:
        """That of a rank; None where the record has another form, as an asynchronous call without its output."""
        dump, record = call.spread.step.ranks[rank], call.records[rank]
        leaves = dump.leaves(record)
        held = call.leaves[rank]
        own, given = _below(held, "output.0"), _below(held, "input.1")
        is_in_place = call.operation.bare.strip("_") in ("all_reduce", "broadcast")
        inputs = _below(held, "input.0") or _below(held, "input.tensor") if is_in_place else given
        if not is_in_place and not inputs:  # functional: the input comes first, and the result is new
            inputs = _below(held, "input.0")
        if not inputs or not own or any(held[path].fault for path in (*inputs, *own)):
            return None
        numbers = [plain(leaf) for leaf in leaves if re.fullmatch(r"input\.(3|input_split_sizes)(\.\d+)?", leaf.path)]
        splits = tuple(number for number in numbers if isinstance(number, int))
        source = next((plain(leaf) for leaf in leaves if leaf.path in ("input.1", "input.src")), None)
        roundoff = roundoff_of(held[own[0]].dtype)
        place = source if isinstance(source, int) else -1
        names = [
            "input.gather_dim",
            "input.scatter_dim",
            *(("input.1", "input.2") if call.operation.bare in _ALONG else ()),
        ]
        along = next((number for leaf in leaves if leaf.path in names and type(number := plain(leaf)) is int), 0)
        return cls(inputs, own, reduction_of(leaves), roundoff, splits, place, along)


def _below(held: Mapping[str, Leaf], path: str) -> tuple[str, ...]:
    return tuple(one for one in held if one == path or one.startswith(f"{path}."))


def reduction_of(leaves: Sequence[Leaf]) -> str:
    """The reduction that a record names, SUM where it names none; "" for one that has no law here."""
    for leaf in leaves:
        text = getattr(leaf.value, "content", None) or plain(leaf)
        if leaf.path.startswith("input.") and isinstance(text, str):
            found = _OPERATION.search(text)
            if found is not None:
                return (found[1] or found[2]).upper()
    return "SUM"


#: The other rank of a message, and its tag.
_Line = tuple[int, int]


class Messages:
    """What a rank receives is what the other one sent: the n-th of a tag from a rank is the n-th sent to this one."""

    def __init__(self, spread: Spread) -> None:
        self._spread = spread

    @cached_property
    def _sent(self) -> dict[tuple[int, _Line], list[tuple[RankDump, Leaf]]]:
        found: dict[tuple[int, _Line], list[tuple[RankDump, Leaf]]] = {}
        for dump in self._spread.step.ranks.values():
            for operation, line, path in _messages(dump, "send"):
                found.setdefault((dump.number, line), []).append((dump, tensors(dump, operation.record)[path]))
        return found

    @cached_property
    def _received(self) -> dict[tuple[str, str, int], tuple[_Line, int]]:
        """The line and number of each message by its record, its place, and the rank that gets it."""
        found: dict[tuple[str, str, int], tuple[_Line, int]] = {}
        for dump in self._spread.step.ranks.values():
            counts: Counter[_Line] = Counter()
            for operation, line, path in _messages(dump, "receive"):
                found[operation.record, path, dump.number] = line, counts[line]
                counts[line] += 1
        return found

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings on what was received."""
        if not _is_message(call.operation):
            return
        rank = call.dump.number
        for path in call.leaves[rank]:
            (peer, tag), number = self._received.get((call.operation.record, path, rank), ((-1, 0), 0))
            out = path.replace("input.", "output.", 1)
            if peer < 0 or out not in call.leaves[rank]:
                continue
            sent = self._sent.get((peer, (rank, tag)), [])
            if number >= len(sent):
                yield call.found(out, "missing", f"rank {peer} has no record of sending it")
                continue
            said = alike([sent[number], (call.dump, call.leaves[rank][out])])
            if said == "different":
                yield call.found(
                    out, "unexplained", f"is not what rank {peer} sent in its {number + 1}. message to here"
                )
            elif said != "unknown":
                yield call.found(out, "placed", placement=f"as rank {peer} sent it")


def _is_message(operation: Operation) -> bool:
    return is_communication(operation.record) and operation.bare in MESSAGES


def _messages(dump: RankDump, direction: str) -> Iterator[tuple[Operation, _Line, str]]:
    """The messages of a rank that are sent, or received: record, line and place of the tensor, in the order of calls.

    What does not wait is in a dump where it ended; its number says when it was called.
    """
    records = [one for one in dump.operations if _is_message(one)]
    ordered = sorted(records, key=lambda one: (len(one.number), one.number))
    called = {name: iter([one for one in ordered if one.name == name]) for name in {one.name for one in records}}
    for operation in (next(called[one.name]) for one in records):
        leaves = {leaf.path: leaf for leaf in dump.leaves(operation.record)}
        for path, leaf in leaves.items():
            if leaf.tensor is None or not path.startswith("input."):
                continue
            front = f"{path.rpartition('.')[0]}." if operation.bare == "batch_isend_irecv" else "input."
            what = plain(leaves.get(f"{front}op")) if operation.bare == "batch_isend_irecv" else operation.bare
            names = (f"{front}{name}" for name in ("peer", "1", "dst", "src"))
            peer = next((plain(leaves[name]) for name in names if name in leaves), None)
            tag = plain(leaves.get(f"{front}tag"))
            if (
                isinstance(what, str)
                and isinstance(peer, int)
                and text_of("communication", f"Distributed.{what}") == direction
            ):
                yield operation, (peer, tag if isinstance(tag, int) else 0), path
