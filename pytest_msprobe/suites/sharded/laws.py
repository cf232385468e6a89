"""Laws that the values of ranks obey whatever the model is: of communication, of copies, and of terms of a sum.

Each law is a small class. It looks at one call, on all ranks that made it, and says of some of its values that they
are as they must be (`placed`), or are not (`unexplained`). What no law speaks of is not judged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from msprobe_collector.dump_format import is_communication
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.suites.sharded.inference import (
    CLIP,
    Alike,
    Parameter,
    Row,
    Spread,
    alike,
    is_constant,
    parameter_values,
    plain,
)
from pytest_msprobe.suites.sharded.judgement import State, ValueFinding, loaded, roundoff_of
from pytest_msprobe.suites.sharded.ranks import RankDump

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_OPERATION = re.compile(r"(?:RedOpType|ReduceOp)\.(\w+)|^(sum|avg|max|min|product|prod|mul)$", re.IGNORECASE)
#: A sum over ranks, in any order, is this many unit roundoffs of the sum of magnitudes away for each rank.
_ROUNDINGS = 4
_RANDOM = ("dropout", "bernoulli", "rand", "normal", "uniform", "multinomial")
_PRODUCTS = {"linear": 2, "dense": 2, "addmm": 0, "baddbmm": 0}
#: Calls between a product and the communication that adds its terms up.
_NEAR = 8


@dataclass(frozen=True)
class Call:
    """One call, on the ranks that made it.

    Attributes:
        spread: of the step.
        dump: of the rank whose item it is.
        operation: there.
        records: its records, by rank.
    """

    spread: Spread
    dump: RankDump
    operation: Operation
    records: Mapping[int, str]

    @cached_property
    def leaves(self) -> dict[int, dict[str, Leaf]]:
        """Tensors of each rank by their places. Raises DumpError."""
        return {number: tensors(self.spread.step.ranks[number], record) for number, record in self.records.items()}

    def values(self, path: str) -> dict[int, Leaf]:
        """One value on the ranks that have it."""
        return {number: found[path] for number, found in self.leaves.items() if path in found}

    def found(self, path: str, state: State, message: str = "", **more: Any) -> ValueFinding:
        """A finding on the value at `path`."""
        leaf = self.leaves[self.dump.number].get(path) or next(iter(self.values(path).values()))
        return ValueFinding(path, state, leaf.dtype, leaf.shape, message=message, is_output=leaf.is_output, **more)

    def array(self, number: int, path: str) -> Array:
        """A tensor of a rank in float64. Raises DumpError."""
        return loaded(self.leaves[number][path], self.spread.step.ranks[number])

    def has_tensors(self, path: str) -> bool:
        """Whether all ranks have the elements of a value."""
        return all(leaf.data_name for leaf in self.values(path).values())


def tensors(dump: RankDump, record: str) -> dict[str, Leaf]:
    """The tensors of a record by their places. Raises DumpError."""
    return {leaf.path: leaf for leaf in dump.leaves(record) if leaf.tensor is not None}


class Law(Protocol):
    """One law."""

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """What it says of the values of a call. Raises DumpError when a file cannot be read."""


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
        expected, allowed = made(call, place, forms)
        found = [call.array(rank, path) for path in forms[rank].outputs]
        if expected is None or sum(one.size for one in found) != sum(one.size for one in expected):
            return None
        left, right = (np.concatenate([one.ravel() for one in values]) for values in (found, expected))
        away, size = float(np.linalg.norm(left - right)), float(np.linalg.norm(right))
        if not np.isfinite(right).all() or away <= allowed:
            return None
        words = (
            f"what came out on rank {rank} is not what went in on ranks {_listed(forms)}: "
            f"{away / size if size else math.inf:.3g} away"
        )
        tolerance = allowed / size if size else 0.0
        return call.found(
            forms[rank].outputs[0], "unexplained", words, distance=away / (size or 1), tolerance=tolerance
        )

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
            whole = call.array(rank, form.inputs[0])
            sizes = form.splits or [len(whole) // len(forms)] * len(forms)
            if sum(sizes) != len(whole):
                return None, 0.0
            found.append(np.split(whole, np.cumsum(sizes)[:-1])[place])
        return found, 0.0

    @staticmethod
    def _broadcast(call: Call, place: int, forms: dict[int, _Form]) -> tuple[list[Array] | None, float]:
        source = forms[next(iter(forms))].source
        return ([call.array(source, forms[source].inputs[0])], 0.0) if source in forms else (None, 0.0)


def _listed(ranks: Any) -> str:
    numbers = list(ranks)
    return f"{', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''}"


def _reduced(parts: Sequence[Array], forms: dict[int, _Form]) -> tuple[list[Array] | None, float]:
    """The parts put together as the call says, and how far rounding may take a result from that."""
    import numpy as np

    form = next(iter(forms.values()))
    if len({part.shape for part in parts}) > 1:
        return None, 0.0
    size = float(np.linalg.norm(np.sum([abs(part) for part in parts], axis=0)))
    allowed = _ROUNDINGS * len(parts) * form.roundoff * size
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
        along = next((plain(leaf) for leaf in leaves if leaf.path in ("input.gather_dim", "input.scatter_dim")), 0)
        return cls(inputs, own, _operation(leaves), roundoff, splits, place, along if isinstance(along, int) else 0)


def _below(held: Mapping[str, Leaf], path: str) -> tuple[str, ...]:
    return tuple(one for one in held if one == path or one.startswith(f"{path}."))


def _operation(leaves: Sequence[Leaf]) -> str:
    """The reduction that a record names, SUM where it names none; "" for one that has no law here."""
    for leaf in leaves:
        text = getattr(leaf.value, "content", None) or plain(leaf)
        if leaf.path.startswith("input.") and isinstance(text, str):
            found = _OPERATION.search(text)
            if found is not None:
                return (found[1] or found[2]).upper()
    return "SUM"


class Messages:
    """What a rank receives is what the other one sent: the n-th message from a rank is the n-th sent to this one."""

    def __init__(self, spread: Spread) -> None:
        self._spread = spread

    @cached_property
    def _sent(self) -> dict[tuple[int, int], list[tuple[RankDump, Leaf]]]:
        found: dict[tuple[int, int], list[tuple[RankDump, Leaf]]] = {}
        for dump in self._spread.step.ranks.values():
            for operation in dump.operations:
                if _is_message(operation):
                    for what, peer, path in _messages(dump, operation):
                        if what.endswith("send"):
                            leaf = tensors(dump, operation.record)[path]
                            found.setdefault((dump.number, peer), []).append((dump, leaf))
        return found

    @cached_property
    def _received(self) -> dict[tuple[str, str, int], tuple[int, int]]:
        """The (peer, number) of each message by its record, its place, and the rank that gets it."""
        found: dict[tuple[str, str, int], tuple[int, int]] = {}
        for dump in self._spread.step.ranks.values():
            counts: dict[int, int] = {}
            for operation in dump.operations:
                for what, peer, path in _messages(dump, operation) if _is_message(operation) else ():
                    if what.endswith("recv"):
                        found[operation.record, path, dump.number] = peer, counts.get(peer, 0)
                        counts[peer] = counts.get(peer, 0) + 1
        return found

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings on what was received."""
        if not _is_message(call.operation):
            return
        rank = call.dump.number
        for path in call.leaves[rank]:
            peer, number = self._received.get((call.operation.record, path, rank), (-1, 0))
            out = path.replace("input.", "output.", 1)
            if peer < 0 or out not in call.leaves[rank]:
                continue
            sent = self._sent.get((peer, rank), [])
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
    return is_communication(operation.record) and operation.bare in (
        "send",
        "recv",
        "isend",
        "irecv",
        "batch_isend_irecv",
    )


def _messages(dump: RankDump, operation: Operation) -> Iterator[tuple[str, int, str]]:
    """(`isend` or another name, the other rank, place of the tensor) of each message of a record."""
    leaves = {leaf.path: leaf for leaf in dump.leaves(operation.record)}
    for path, leaf in leaves.items():
        if leaf.tensor is None or not path.startswith("input."):
            continue
        front = path.rpartition(".")[0]
        if operation.bare == "batch_isend_irecv":
            what, peer = plain(leaves.get(f"{front}.op")), plain(leaves.get(f"{front}.peer"))
        else:
            what = operation.bare
            peer = next((plain(leaves[one]) for one in ("input.1", "input.dst", "input.src") if one in leaves), None)
        if isinstance(what, str) and isinstance(peer, int):
            yield what, peer, path


class SumsOfCopies:
    """What every rank of a group has whole is no term of a sum: adding it up counts it once for each rank."""

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings on what goes into a sum; numbers such as counts of tokens may be equal by chance."""
        if not is_communication(call.operation.record) or "reduce" not in call.operation.bare:
            return
        group = call.spread.group_of(call.dump, call.operation.record)
        rows = [row for row in call.spread.rows_of(call.dump.number, "model") if set(row.ranks) == set(group)]
        dump = call.dump
        if not rows or _operation(dump.leaves(call.operation.record)) != "SUM":
            return
        for path, leaf in call.leaves[dump.number].items():
            if not path.startswith("input.") or math.prod(leaf.shape) < 2 or leaf.provenance.is_uninitialized:
                continue
            held = call.values(path)
            if len(held) < len(group) or _is_divided(dump, call.operation, path, len(group)):
                continue
            if alike([(call.spread.step.ranks[rank], held[rank]) for rank in group]) == "equal" and _is_float(leaf):
                words = f"every rank of {rows[0]} has it whole, and it is summed over them: {len(group)} x what it is"
                yield call.found(path, "unexplained", words)


def _is_float(leaf: Leaf) -> bool:
    return "loat" in leaf.dtype


def _is_divided(dump: RankDump, operation: Operation, path: str, count: int) -> bool:
    """Whether the sum is divided by the number of ranks soon after, which makes it a mean."""
    for name in dump.record_names[operation.index + 1 : operation.index + 1 + _NEAR]:
        if "div" in name:
            numbers = [plain(leaf) for leaf in dump.leaves(name)]
            return any(number in (count, float(count)) for number in numbers if number is not None)
    return False


class TermsOfSums:
    """A value that all ranks have must not be added to terms of a sum: it would be counted once for each rank.

    A product whose result goes into a sum over ranks gives terms; so does an embedding of which each rank has other
    rows, where each row must come from one rank alone.
    """

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings on biases of products, and on rows of embeddings, whose results are summed over ranks."""
        name = call.operation.bare.lower()
        if call.operation.phase != "forward" or not (name in _PRODUCTS or name == "embedding"):
            return
        text = bytes(call.dump.text(call.operation.record))
        row = self._summed_over(call) if b'"dtensor"' not in text else None  # DTensor sees to terms of sums by itself
        if row is None or any(rank not in call.records for rank in row.ranks):
            return
        if name == "embedding":
            yield from self._of_rows(call, row)
            return
        path = f"input.{_PRODUCTS[name]}"
        path = path if path in call.leaves[call.dump.number] else "input.bias"
        held = call.values(path)
        if all(rank in held for rank in row.ranks) and any(leaf.statistics[3] for leaf in held.values()):
            said = alike([(call.spread.step.ranks[rank], held[rank]) for rank in row.ranks])
            if said in ("equal", "constant"):
                words = f"every rank of {row} adds it to its terms of the sum: it is counted {len(row.ranks)} times"
                yield call.found(path, "unexplained", words)

    @staticmethod
    def _of_rows(call: Call, row: Row) -> Iterator[ValueFinding]:
        held = [(call.spread.step.ranks[rank], call.values("input.1")[rank]) for rank in row.ranks]
        if call.has_tensors("output.0") and alike(held) == "different":
            rows = sum((abs(call.array(rank, "output.0")).sum(-1) > 0).astype(int) for rank in row.ranks)
            if (rows > 1).any():
                words = (
                    f"{int((rows > 1).sum())} of {rows.size} rows come from several ranks of {row}, which are summed"
                )
                yield call.found("output.0", "unexplained", words)

    @staticmethod
    def _summed_over(call: Call) -> Row | None:
        """The group over which the result is summed as it is; None for none."""
        dump, operation = call.dump, call.operation
        made = call.leaves[dump.number].get("output.0")
        for name in dump.record_names[operation.index + 1 : operation.index + 1 + _NEAR] if made is not None else ():
            if is_communication(name) and "reduce" in name and _operation(dump.leaves(name)) == "SUM":
                gets = [leaf for path, leaf in tensors(dump, name).items() if path.startswith("input.")]
                group = call.spread.group_of(dump, name)
                if made is not None and any(_is_same(leaf, made) for leaf in gets):
                    rows = call.spread.rows_of(dump.number, "model")
                    return next((row for row in rows if set(row.ranks) == set(group)), None)
        return None


def _is_same(one: Leaf, other: Leaf) -> bool:
    """Whether two values of a rank are one, as far as shape and statistics tell; zeros and ones never are."""
    return (one.shape, one.statistics) == (other.shape, other.statistics) and not is_constant(one)


class RandomNumbers:
    """What ranks with parts of one model have whole must stay so: they draw the same random numbers for it."""

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings on results of random calls with equal inputs."""
        name = call.operation.bare.lower()
        if call.operation.phase != "forward" or not any(word in name for word in _RANDOM):
            return
        for row in call.spread.rows_of(call.dump.number, "model"):
            paths = call.leaves[call.dump.number]
            inputs = [path for path in paths if path.startswith("input.")]
            said = {path: _over(call, path, row) for path in paths}
            if inputs and all(said[path] == "equal" for path in inputs):
                for path in paths:
                    if path.startswith("output.") and said[path] == "different":
                        words = f"what goes in is equal on {row}, and they draw other random numbers for it"
                        yield call.found(path, "unexplained", words)
                    elif path.startswith("output."):
                        yield call.found(path, "placed", placement=f"R over {row.name}")


def _over(call: Call, path: str, row: Row) -> Alike:
    held = call.values(path)
    if any(rank not in held for rank in row.ranks):
        return "unknown"
    return alike([(call.spread.step.ranks[rank], held[rank]) for rank in row.ranks])


class Losses:
    """Ranks with the same labels, and parts of one model, have the same loss."""

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings on single numbers that a layer makes of equal whole numbers."""
        own = call.leaves[call.dump.number]
        if not call.operation.is_cell or call.operation.phase != "forward":
            return
        losses = [
            path for path, leaf in own.items() if path.startswith("output.") and not leaf.shape and _is_float(leaf)
        ]
        labels = [path for path, leaf in own.items() if path.startswith("input.") and "nt" in leaf.dtype and leaf.shape]
        for row in call.spread.rows_of(call.dump.number, "model") if losses and labels else ():
            if any(_over(call, path, row) != "equal" for path in labels):
                continue
            for path in losses:
                said = _over(call, path, row)
                if said == "different":
                    words = f"is not the same on {row}, which have the same labels and parts of one model"
                    yield call.found(path, "unexplained", words)
                elif said != "unknown":
                    yield call.found(path, "placed", placement=f"R over {row.name}")


class Recomputations:
    """What is computed again in the backward is what the forward computed."""

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings of the collector, which compared both."""
        for rank, record in call.records.items():
            dump = call.spread.step.ranks[rank]
            if dump.is_recomputed_otherwise(record):
                path = next(iter(call.leaves[rank]), "")
                if path:
                    words = (
                        f"rank {rank} computed again what this goes through, and it is not what the forward computed"
                    )
                    yield call.found(path, "unexplained", words)
                return


class Stages:
    """Stages of a pipeline have other layers, so other parameters; single ones, such as tied embeddings, are shared."""

    _FEWEST = 2

    def __init__(self, spread: Spread) -> None:
        self._spread = spread

    @cached_property
    def _copied(self) -> dict[int, tuple[int, set[Any]]]:
        """The earlier stage whose parameters a rank has, and the contents that both have, by ranks."""
        contents = {rank: _contents(table) for rank, table in self._spread.parameters.items()}
        found: dict[int, tuple[int, set[Any]]] = {}
        for rank, own in contents.items():
            for row in self._spread.rows_of(rank, "pipeline"):
                for other in row.ranks[: row.ranks.index(rank)]:
                    shared = set(own) & set(contents[other])
                    if len(shared) >= max(self._FEWEST, min(len(own), len(contents[other])) / 2):
                        found.setdefault(rank, (other, shared))
        return found

    def is_copied(self, rank: int, other: int) -> bool:
        """Whether one of two ranks has the layers of the other, so that equal parameters are no tied ones."""
        return self._copied.get(rank, (-1,))[0] == other or self._copied.get(other, (-1,))[0] == rank

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings on parameters of layers."""
        rank = call.dump.number
        if not call.operation.is_cell or call.operation.phase != "forward" or rank not in self._copied:
            return
        other, shared = self._copied[rank]
        for path, leaf in call.leaves[rank].items():
            if path.startswith("parameters.") and _content(leaf) in shared:
                words = f"is a parameter of rank {other}, another stage: {len(shared)} parameters are the same on both"
                yield call.found(path, "unexplained", words)


def _content(leaf: Leaf) -> tuple[Any, ...]:
    return (leaf.shape, *leaf.statistics)


def _contents(table: Mapping[str, Parameter]) -> dict[Any, Parameter]:
    """Parameters by their contents; constants, such as scales of ones, are equal everywhere."""
    return {_content(one.before): one for one in table.values() if one.before and not is_constant(one.before)}


class Copies:
    """Copies of a parameter get the same gradient and stay copies; other parameters do not get one gradient."""

    def __init__(self, spread: Spread, stages: Stages) -> None:
        self._spread, self._stages = spread, stages
        self._contents = cached_contents(spread)

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings on the gradients that an optimizer gets, and on parameters and state that it leaves."""
        if not call.operation.record.startswith("Optimizer."):
            return
        rank = call.dump.number
        for side, what, name, leaf in parameter_values(call.dump, call.operation.record):
            if (side, what) == ("input", "parameters"):
                continue
            owner = self._owner(rank, name) if what == "state" else name
            copies = self._copies(rank, owner) if owner else {}
            if what == "gradients" and call.dump.is_partial(leaf):
                words = "the run says itself that ranks have terms of a sum (DTensor); what the step leaves is judged"
                yield call.found(leaf.path, "unjudged", words)
            elif copies:
                yield from self._of_copies(call, leaf, what, (name, owner), copies)
            elif what == "gradients":
                yield from self._of_shards(call, leaf, name)

    def _owner(self, rank: int, state: str) -> str:
        """The parameter that a value of state is of: `emb.weight` of `emb.weight.exp_avg`."""
        return next((name for name in self._spread.parameters[rank] if state.startswith(f"{name}.")), "")

    def _copies(self, rank: int, name: str) -> dict[int, str]:
        """The names of a parameter's copies by ranks, its own among them; {} where none is known for certain."""
        own = self._spread.parameters[rank].get(name)
        if own is None or own.before is None:
            return {}
        found = {rank: name}
        for row in self._spread.rows_of(rank, "data", "model"):
            for other in row.ranks:
                one = self._spread.parameters[other].get(name)
                is_certain = not is_constant(own.before) or self._spread.sharing(row) == "data"
                if one is None or one.before is None or not is_certain:
                    continue
                if alike([(own.dump, own.before), (one.dump, one.before)]) in ("equal", "constant"):
                    found[other] = name
        for other, twin in self._contents.get(_content(own.before), {}).items():
            is_stage = any(other in row.ranks for row in self._spread.rows_of(rank, "pipeline"))
            if is_stage and other not in found and not self._stages.is_copied(rank, other):
                found[other] = twin
        return found if len(found) > 1 else {}

    def _of_copies(
        self, call: Call, leaf: Leaf, what: str, names: tuple[str, str], copies: dict[int, str]
    ) -> Iterator[ValueFinding]:
        name, owner = names
        for other, twin in copies.items():
            record = call.records.get(other)
            dump = self._spread.step.ranks[other]
            value = self._value(call, dump, record, leaf.path, (what, name, owner, twin))
            if value is None:
                if what == "gradients" and record is not None:
                    words = f"rank {other} has a copy of this parameter, and no gradient of it"
                    yield call.found(leaf.path, "unexplained", words)
                    return
                continue
            if alike([(call.dump, leaf), (dump, value)]) == "different":
                words = {
                    "gradients": "gets another gradient there: terms of a sum that nothing has added, or another mean",
                    "parameters": "is another one there after the step",
                    "state": "has another state there after the step",
                }[what]
                called = "" if twin == owner else f" as {twin}"
                yield call.found(
                    leaf.path, "unexplained", f"rank {other} has a copy of this parameter{called}, which {words}"
                )
                return
        yield call.found(leaf.path, "placed", placement=f"R over ranks {_listed(sorted(copies))}")

    def _value(
        self, call: Call, dump: RankDump, record: str | None, path: str, names: tuple[str, str, str, str]
    ) -> Leaf | None:
        """The same value of a copy on another rank, which may be in the record of another optimizer."""
        what, _, owner, twin = names
        if record is not None and twin == owner:
            return call.leaves[dump.number].get(path)
        if call.operation.record.startswith(CLIP) or what == "state":
            return None
        one = self._spread.parameters[dump.number][twin]
        return one.gradient if what == "gradients" else one.after

    def _of_shards(self, call: Call, leaf: Leaf, name: str) -> Iterator[ValueFinding]:
        """Findings on one gradient of parameters that are not copies."""
        rank = call.dump.number
        for row in self._spread.rows_of(rank, "model"):
            held = [self._spread.parameters[other].get(name) for other in row.ranks]
            known = [(one.dump, one.before) for one in held if one is not None and one.before is not None]
            gradients = call.values(leaf.path)
            if len(known) < len(row.ranks) or any(other not in gradients for other in row.ranks):
                continue
            found = [(self._spread.step.ranks[other], gradients[other]) for other in row.ranks]
            if alike(known) == "different" and alike(found) == "equal" and _is_summed(call.dump, name):
                words = f"{row} have other parts of this parameter, and one gradient of it: it was averaged over them"
                yield call.found(leaf.path, "unexplained", words)


def _is_summed(dump: RankDump, name: str) -> bool:
    """Whether a communication of a rank got the gradient of a parameter."""
    return any(
        leaf.provenance.grad_of == name
        for operation in dump.operations
        if is_communication(operation.record)
        for leaf in dump.leaves(operation.record)
    )


def cached_contents(spread: Spread) -> dict[Any, dict[int, str]]:
    """The names of parameters by their contents and ranks."""
    found: dict[Any, dict[int, str]] = {}
    for rank, table in spread.parameters.items():
        for name, one in table.items():
            if one.before is not None and not is_constant(one.before):
                found.setdefault(_content(one.before), {})[rank] = name
    return found


class ClipNorms:
    """The norm that gradients are clipped by is that of all gradients, copies counted once, the same on all ranks."""

    _FINEST = 1e-5
    _ROUNDINGS = 64

    def findings(self, call: Call) -> Iterator[ValueFinding]:
        """Findings on the norm."""
        if not call.operation.record.startswith(CLIP):
            return
        held = {
            rank: (dump, record, tensors(dump, record))
            for rank, dump in call.spread.step.ranks.items()
            if (record := call.operation.record) in dump
        }
        norms = {
            rank: next((one for path, one in own.items() if path.startswith("output")), None)
            for rank, (_, _, own) in held.items()
        }
        path = next((one for one in call.leaves[call.dump.number] if one.startswith("output")), "")
        if (
            not path
            or len(held) < len(call.spread.step.ranks)
            or any(one is None or one.shape for one in norms.values())
        ):
            return
        told = {rank: float(one.statistics[3]) for rank, one in norms.items() if one is not None}
        expected = self._expected([(dump, own) for dump, _, own in held.values()])
        first = told[call.dump.number]
        tolerance = self._tolerance([leaf for _, _, own in held.values() for leaf in own.values()])
        others = [rank for rank, norm in told.items() if abs(norm - first) > tolerance * abs(first)]
        if others:
            words = f"clips by the norm {first:.6g}; rank {others[0]} by another one, {told[others[0]]:.6g}"
            yield call.found(path, "unexplained", words)
        elif expected is None:
            yield call.found(
                path, "unjudged", "some gradients are of one number each: whether they are copies is not known"
            )
        elif abs(first - expected) > tolerance * expected:
            words = f"gradients are clipped by the norm {first:.6g}; with copies counted once they have {expected:.6g}"
            yield call.found(path, "unexplained", words, distance=abs(first / expected - 1), tolerance=tolerance)
        else:
            yield call.found(path, "placed", placement="R")

    def _tolerance(self, leaves: Sequence[Leaf]) -> float:
        return max(self._FINEST, self._ROUNDINGS * max((roundoff_of(leaf.dtype) for leaf in leaves), default=0.0))

    @staticmethod
    def _expected(held: Sequence[tuple[RankDump, dict[str, Leaf]]]) -> float | None:
        """The norm of all different gradients; None where copies cannot be told, or terms are not added."""
        seen: dict[tuple[int, ...], list[tuple[RankDump, Leaf]]] = {}
        total = 0.0
        for dump, own in held:
            for path, leaf in own.items():
                norm = leaf.statistics[3]
                if not path.startswith("input.") or ".gradients." not in f".{path}" or not norm:
                    continue
                if not isinstance(norm, (int, float)) or is_constant(leaf) or dump.is_partial(leaf):
                    return None
                known = seen.setdefault(leaf.shape, [])
                if not any(alike([one, (dump, leaf)]) == "equal" for one in known):
                    known.append((dump, leaf))
                    total += float(norm) ** 2
        return math.sqrt(total)


def all_laws(spread: Spread) -> tuple[Law, ...]:
    """The laws that a step is judged by."""
    stages = Stages(spread)
    return (
        Collectives(),
        Messages(spread),
        SumsOfCopies(),
        TermsOfSums(),
        RandomNumbers(),
        Losses(),
        Recomputations(),
        stages,
        Copies(spread, stages),
        ClipNorms(),
    )
