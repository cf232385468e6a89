"""Laws of communication: what comes out of collectives and messages is what went in."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import is_communication
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.apis.fact_table import text_of
from pytest_msprobe.numerics.expected import Roundoffs
from pytest_msprobe.suites.sharded.inference import RankCall, StepSpread, alike, is_message, plain
from pytest_msprobe.suites.sharded.judgement import ValueFinding, roundoff_of
from pytest_msprobe.suites.sharded.ranks import RankDump, listed

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_OPERATION = re.compile(r"(?:RedOpType|ReduceOp)\.(\w+)|^(sum|avg|max|min|product|prod|mul)$", re.IGNORECASE)
#: Functional collectives, whose dimension follows the tensor, or the reduction.
_ALONG = ("all_gather_single", "reduce_scatter_single")


class Collectives:
    """What comes out of a collective is what went in on all ranks of its group, reduced as it says."""

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
        """Findings on the outputs."""
        made = getattr(self, f"_{call.operation.bare.strip('_')}", None)
        if not is_communication(call.operation.record) or made is None:
            return
        group = call.spread.group_of(call.dump, call.operation.record)
        outputs = call.places("output.")
        lacking = [rank for rank in group if rank not in call.records]
        if call.dump.number not in group:
            for path in outputs[:1]:
                yield call.found(path, "missing", "its rank is not in the group that it names")
            return
        if lacking:
            words = f"rank {lacking[0]} of its group has no such call, or other numbers of them"
            for path in outputs[:1]:
                yield call.found(path, "missing", words)
            return
        forms: _Forms = {}
        for rank in group:
            form = _CollectiveForm.of(call, rank)
            if form is None:
                return
            forms[rank] = form
        for rank in group:
            if not all(leaf.data_name for leaf in call.leaves[rank].values()):
                for path in outputs[:1]:
                    yield call.found(path, "unjudged", "its law needs tensors")
                return
        for place, rank in enumerate(group):
            wrong = self._wrong(call, (rank, place), forms, made)
            if wrong is not None:
                yield wrong
                return
        kind = "R" if call.operation.bare in ("all_reduce", "broadcast", "all_gather") else "as communicated"
        for path in forms[call.dump.number].outputs:
            yield call.found(path, "placed", placement=kind)

    @staticmethod
    def _wrong(call: RankCall, at: tuple[int, int], forms: _Forms, made: Any) -> ValueFinding | None:
        import numpy as np

        rank, place = at
        try:
            expected, allowed = made(call, place, forms)
        except (ValueError, IndexError):  # of shapes or numbers of tensors that no such call has
            expected, allowed = None, 0.0
        out = forms[rank].outputs[0]
        actual = np.concatenate([call.array(rank, path).ravel() for path in forms[rank].outputs])
        went_in = np.concatenate([array.ravel() for array in expected or [np.zeros(0)]])
        if expected is None or actual.size != went_in.size:
            return call.found(out, "unjudged", "no law is known of a call with such tensors and options")
        away, size = float(np.linalg.norm(actual - went_in)), float(np.linalg.norm(went_in))
        if not np.isfinite(went_in).all():
            return call.found(out, "unjudged", "what went in is not finite, so that its sum tells nothing")
        if away <= allowed:
            return None
        relative, tolerance = (away / size, allowed / size) if size else (math.inf, 0.0)
        words = f"what came out on rank {rank} is not what went in on ranks {listed(forms)}: {relative:.3g} away"
        return call.found(out, "unexplained", words, distance=away / (size or 1), tolerance=tolerance)

    @staticmethod
    def _all_reduce(call: RankCall, place: int, forms: _Forms) -> _Expected:
        return _reduced(_went_in(call, forms), forms)

    @staticmethod
    def _reduce_scatter(call: RankCall, place: int, forms: _Forms) -> _Expected:
        return _reduced(_went_in(call, forms, place), forms)

    @staticmethod
    def _reduce_scatter_tensor(call: RankCall, place: int, forms: _Forms) -> _Expected:
        import numpy as np

        parts = []
        for array, form in zip(_went_in(call, forms), forms.values()):
            parts.append(np.array_split(array, len(forms), form.dimension)[place])
        return _reduced(parts, forms)

    _reduce_scatter_single = _reduce_scatter_tensor

    @staticmethod
    def _all_gather(call: RankCall, place: int, forms: _Forms) -> _Expected:
        import numpy as np

        parts = _went_in(call, forms)
        dimension = forms[next(iter(forms))].dimension
        return ([np.concatenate(parts, dimension)] if dimension else parts), 0.0

    _all_gather_into_tensor = _all_gather_single = _all_gather

    @staticmethod
    def _all_to_all(call: RankCall, place: int, forms: _Forms) -> _Expected:
        return _went_in(call, forms, place), 0.0

    @staticmethod
    def _all_to_all_single(call: RankCall, place: int, forms: _Forms) -> _Expected:
        import numpy as np

        parts = []
        for array, form in zip(_went_in(call, forms), forms.values()):
            whole = np.atleast_1d(array)
            sizes = form.splits or [len(whole) // len(forms)] * len(forms)
            if min(sizes) < 0 or sum(sizes) != len(whole):
                return None, 0.0
            parts.append(np.split(whole, np.cumsum(sizes)[:-1])[place])
        return parts, 0.0

    @staticmethod
    def _broadcast(call: RankCall, place: int, forms: _Forms) -> _Expected:
        source = forms[next(iter(forms))].source
        return ([call.array(source, forms[source].inputs[0])], 0.0) if source in forms else (None, 0.0)


def _went_in(call: RankCall, forms: _Forms, at: int = 0) -> list[Array]:
    """What each rank of the group put in at this place."""
    return [call.array(rank, form.inputs[at]) for rank, form in forms.items()]


def _reduced(parts: Sequence[Array], forms: _Forms) -> _Expected:
    """The parts put together as the call says, and how far rounding may take a result from that."""
    import numpy as np

    form = next(iter(forms.values()))
    if len({part.shape for part in parts}) > 1:
        return None, 0.0
    size = float(np.linalg.norm(np.sum(list(map(abs, parts)), axis=0)))
    allowed = Roundoffs.SUM_OVER_RANKS * len(parts) * form.roundoff * size
    if form.operation in ("SUM", "AVG"):
        total = np.sum(parts, axis=0)
        return [total / len(parts) if form.operation == "AVG" else total], allowed
    extreme = {"MAX": np.max, "MIN": np.min}.get(form.operation)
    return None if extreme is None else [extreme(parts, axis=0)], 0.0


#: What ought to come out, None where no law is known, and how far rounding may take a result from that.
_Expected = tuple["list[Array] | None", float]


@dataclass(frozen=True, slots=True)
class _CollectiveForm:
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
    def of(cls, call: RankCall, rank: int) -> _CollectiveForm | None:
        """That of a rank; None where the record has another form, as an asynchronous call without its output."""
        dump, record = call.spread.step.ranks[rank], call.records[rank]
        leaves = dump.leaves(record)
        held = call.leaves[rank]
        outputs, second = _below(held, "output.0"), _below(held, "input.1")
        is_in_place = call.operation.bare.strip("_") in ("all_reduce", "broadcast")
        # Of functional calls the input comes first, and the result is new.
        inputs = (() if is_in_place else second) or _below(held, "input.0")
        if not inputs and is_in_place:
            inputs = _below(held, "input.tensor")
        if not inputs or not outputs or any(held[path].fault for path in (*inputs, *outputs)):
            return None
        sizes = [leaf for leaf in leaves if re.fullmatch(r"input\.(3|input_split_sizes)(\.\d+)?", leaf.path)]
        source = next((plain(leaf) for leaf in leaves if leaf.path in ("input.1", "input.src")), None)
        names = ["input.gather_dim", "input.scatter_dim"]
        if call.operation.bare in _ALONG:
            names += ["input.1", "input.2"]
        dimensions = _integers(leaf for leaf in leaves if leaf.path in names)
        return cls(
            inputs,
            outputs,
            reduction_of(leaves),
            roundoff_of(held[outputs[0]].dtype),
            splits=_integers(sizes),
            source=source if isinstance(source, int) else -1,
            dimension=next(iter(dimensions), 0),
        )


#: The forms of a collective by ranks.
_Forms = dict[int, _CollectiveForm]


def _integers(leaves: Iterable[Leaf]) -> tuple[int, ...]:
    numbers = map(plain, leaves)
    return tuple(number for number in numbers if isinstance(number, int) and not isinstance(number, bool))


def _below(held: Mapping[str, Leaf], path: str) -> tuple[str, ...]:
    return tuple(place for place in held if place == path or place.startswith(f"{path}."))


def reduction_of(leaves: Sequence[Leaf]) -> str:
    """The reduction that a record names, SUM where it names none; "" for one that has no law here."""
    for leaf in leaves:
        text = getattr(leaf.value, "content", None) or plain(leaf)
        if leaf.path.startswith("input.") and isinstance(text, str):
            match = _OPERATION.search(text)
            if match is not None:
                return (match[1] or match[2]).upper()
    return "SUM"


#: The other rank of a message, and its tag.
_Line = tuple[int, int]


class Messages:
    """What a rank receives is what the other one sent: the n-th of a tag from a rank is the n-th sent to this one."""

    def __init__(self, spread: StepSpread) -> None:
        self._spread = spread

    @cached_property
    def _sent(self) -> dict[tuple[int, _Line], list[tuple[RankDump, Leaf]]]:
        sent: dict[tuple[int, _Line], list[tuple[RankDump, Leaf]]] = defaultdict(list)
        for dump in self._spread.step.ranks.values():
            for operation, line, path in _messages(dump, "send"):
                sent[dump.number, line].append((dump, dump.held(operation.record)[path]))
        return sent

    @cached_property
    def _received(self) -> dict[tuple[str, str, int], tuple[_Line, int]]:
        """The line and number of each message by its record, its place, and the rank that gets it."""
        received: dict[tuple[str, str, int], tuple[_Line, int]] = {}
        for dump in self._spread.step.ranks.values():
            counts: Counter[_Line] = Counter()
            for operation, line, path in _messages(dump, "receive"):
                received[operation.record, path, dump.number] = line, counts[line]
                counts[line] += 1
        return received

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
        """Findings on what was received."""
        if not is_message(call.operation):
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


def _messages(dump: RankDump, direction: str) -> Iterator[tuple[Operation, _Line, str]]:
    """The messages of a rank that are sent, or received: record, line and place of the tensor, in the order of calls.

    What does not wait is in a dump where it ended; its number says when it was called.
    """
    ended = [*filter(is_message, dump.operations)]
    called: dict[str, list[Operation]] = defaultdict(list)
    for operation in sorted(ended, key=lambda operation: (len(operation.number), operation.number)):
        called[operation.name].append(operation)
    for place in ended:
        operation = called[place.name].pop(0)
        leaves = {leaf.path: leaf for leaf in dump.leaves(operation.record)}
        for path, leaf in leaves.items():
            if leaf.tensor is None or not path.startswith("input."):
                continue
            front, what = "input.", operation.bare
            if what == "batch_isend_irecv":
                front = f"{path.rpartition('.')[0]}."
                what = plain(leaves.get(f"{front}op"))
            peers = [leaves[f"{front}{name}"] for name in ("peer", "1", "dst", "src") if f"{front}{name}" in leaves]
            peer, tag = plain(next(iter(peers), None)), plain(leaves.get(f"{front}tag"))
            is_known = isinstance(what, str) and isinstance(peer, int)
            if is_known and text_of("communication", f"Distributed.{what}") == direction:
                yield operation, (peer, tag if isinstance(tag, int) else 0), path
