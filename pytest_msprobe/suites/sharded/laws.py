"""Laws that the values of ranks obey whatever the model is: of copies, of terms of a sum, of random numbers, of norms.

Each law is a small class. It looks at one call, on all ranks that made it, and says of some of its values that they
are as they must be (`placed`), or are not (`unexplained`). What no law speaks of is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import chain, islice
from typing import Any

from msprobe_collector.dump_format import is_communication
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.apis.fact_table import fact_of, is_a
from pytest_msprobe.numerics.expected import Relative, Roundoffs
from pytest_msprobe.suites.sharded.communication import Collectives, Messages, reduction_of
from pytest_msprobe.suites.sharded.inference import (
    Alike,
    Parameter,
    RankCall,
    RankGroup,
    RankLaw,
    StepSpread,
    alike,
    is_constant,
    parameter_values,
    plain,
)
from pytest_msprobe.suites.sharded.judgement import ValueFinding, roundoff_of
from pytest_msprobe.suites.sharded.matching import CLIP
from pytest_msprobe.suites.sharded.ranks import RankDump, listed

_PRODUCTS = {"linear": 2, "dense": 2, "addmm": 0, "baddbmm": 0}
#: Calls between a product and the communication that adds its terms up.
_NEAR = 8


class SumsOfCopies:
    """What every rank of a group has whole is no term of a sum: adding it up counts it once for each rank."""

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
        """Findings on what goes into a sum; numbers such as counts of tokens may be equal by chance."""
        if not (is_communication(call.operation.record) and fact_of("reductions", call.operation.name)):
            return
        group = call.spread.group_of(call.dump, call.operation.record)
        row, dump = _row_of(call, group), call.dump
        if row is None or reduction_of(dump.leaves(call.operation.record)) != "SUM":
            return
        for path, leaf in call.leaves[dump.number].items():
            if not path.startswith("input.") or math.prod(leaf.shape) < 2 or leaf.provenance.is_uninitialized:
                continue
            if not _is_float(leaf) or _is_mean(dump, call.operation, leaf, len(group)):
                continue
            if call.alike(path, group) == "equal":
                words = f"every rank of {row} has it whole, and it is summed over them: {len(group)} x what it is"
                yield call.found(path, "unexplained", words)


def _is_float(leaf: Leaf) -> bool:
    return "loat" in leaf.dtype


def _is_mean(dump: RankDump, operation: Operation, leaf: Leaf, count: int) -> bool:
    """Whether what goes into a sum over ranks, or what comes out, is divided by their number, which makes it a mean."""
    before = reversed(dump.record_names[max(0, operation.index - _NEAR) : operation.index])
    made = filter(lambda name: _gives(dump, name, leaf), before)
    after = dump.record_names[operation.index + 1 : operation.index + 1 + _NEAR]
    for name in chain(islice(made, 1), after):
        factor = _factor(dump, name)
        if factor is not None and abs(count * factor - 1) < Relative.DECIMALS:
            return True
    return False


def _gives(dump: RankDump, record: str, leaf: Leaf) -> bool:
    return any(output.is_output and _is_same(output, leaf) for output in dump.leaves(record))


def _factor(dump: RankDump, name: str) -> float | None:
    """By which number a call multiplies its tensor; None of all other calls."""
    operation = Operation.of(name, 0)
    is_quotient = is_a("div", operation.name)
    if operation.phase != "forward" or not (is_quotient or is_a("mul", operation.name)):
        return None
    for leaf in dump.leaves(name):
        number = plain(leaf)
        if leaf.path.startswith("input.") and isinstance(number, (int, float)) and number:
            return 1 / number if is_quotient else float(number)
    return None


class TermsOfSums:
    """A value that all ranks have must not be added to terms of a sum: it would be counted once for each rank.

    A product whose result goes into a sum over ranks gives terms; so does an embedding of which each rank has other
    rows, where each row must come from one rank alone.
    """

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
        """Findings on biases of products, and on rows of embeddings, whose results are summed over ranks."""
        name = call.operation.bare.lower()
        if call.operation.phase != "forward" or not (name in _PRODUCTS or name == "embedding"):
            return
        if b'"dtensor"' in bytes(call.dump.text(call.operation.record)):  # it sees to terms of sums by itself
            return
        row = self._summed_over(call)
        if row is None or not call.records.keys() >= set(row.ranks):
            return
        if name == "embedding":
            yield from self._of_rows(call, row)
            return
        path = f"input.{_PRODUCTS[name]}"
        if path not in call.leaves[call.dump.number]:
            path = "input.bias"
        is_zero = not any(leaf.statistics[3] for leaf in call.values(path).values())
        if not is_zero and call.alike(path, row.ranks) in ("equal", "constant"):
            words = f"every rank of {row} adds it to its terms of the sum: it is counted {len(row.ranks)} times"
            yield call.found(path, "unexplained", words)

    @staticmethod
    def _of_rows(call: RankCall, row: RankGroup) -> Iterator[ValueFinding]:
        if call.has_tensors("output.0") and call.alike("input.1", row.ranks) == "different":
            if len({leaf.shape for leaf in call.values("output.0").values()}) > 1:
                return
            counts = sum((abs(call.array(rank, "output.0")).sum(-1) > 0).astype(int) for rank in row.ranks)
            several = int((counts > 1).sum())
            if several:
                words = f"{several} of {counts.size} rows come from several ranks of {row}, which are summed"
                yield call.found("output.0", "unexplained", words)

    @staticmethod
    def _summed_over(call: RankCall) -> RankGroup | None:
        """The group over which the result is summed as it is; None for none."""
        dump, operation = call.dump, call.operation
        made = call.leaves[dump.number].get("output.0")
        if made is None:
            return None
        for name in dump.record_names[operation.index + 1 : operation.index + 1 + _NEAR]:
            is_sum = is_communication(name) and fact_of("reductions", Operation.of(name, 0).name)
            if is_sum and reduction_of(dump.leaves(name)) == "SUM":
                gets = (leaf for path, leaf in dump.held(name).items() if path.startswith("input."))
                if any(_is_same(leaf, made) for leaf in gets):
                    return _row_of(call, call.spread.group_of(dump, name))
        return None


def _row_of(call: RankCall, group: Sequence[int]) -> RankGroup | None:
    """The group of these ranks, if they have parts of one model."""
    for row in call.spread.rows_of(call.dump.number, "model"):
        if set(row.ranks) == set(group):
            return row
    return None


def _is_same(value: Leaf, other: Leaf) -> bool:
    """Whether two values of a rank are one, as far as shape and statistics tell; zeros and ones never are."""
    return (value.shape, value.statistics) == (other.shape, other.statistics) and not is_constant(value)


class RandomNumbers:
    """What ranks with parts of one model have whole must stay so: they draw the same random numbers for it."""

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
        """Findings on results of random calls with equal inputs."""
        if call.operation.phase != "forward" or not fact_of("random", call.operation.name):
            return
        wrong = "what goes in is equal on {}, and they draw other random numbers for it"
        yield from _made_of(call, call.places("input."), call.places("output."), wrong)


def _made_of(call: RankCall, gets: Sequence[str], makes: Sequence[str], wrong: str) -> Iterator[ValueFinding]:
    """Findings on what ranks with parts of one model make of equal values: `wrong` are the words for other values."""
    for row in call.spread.rows_of(call.dump.number, "model"):
        if not gets or any(call.alike(path, row.ranks) != "equal" for path in gets):
            continue
        for path in makes:
            said = call.alike(path, row.ranks)
            if said == "different":
                yield call.found(path, "unexplained", wrong.format(row))
            elif said != "unknown":
                yield call.found(path, "placed", placement=f"R over {row.name}")


class Losses:
    """Ranks with the same labels, and parts of one model, have the same loss."""

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
        """Findings on single numbers that a layer makes of equal whole numbers."""
        leaves = call.leaves[call.dump.number]
        if not call.operation.is_cell or call.operation.phase != "forward":
            return
        losses, labels = [], []
        for path, leaf in leaves.items():
            if path.startswith("output.") and not leaf.shape and _is_float(leaf):
                losses.append(path)
            elif path.startswith("input.") and leaf.shape and "nt" in leaf.dtype:
                labels.append(path)
        wrong = "is not the same on {}, which have the same labels and parts of one model"
        yield from _made_of(call, labels, losses, wrong)


class Recomputations:
    """What is computed again in the backward is what the forward computed."""

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
        """Findings of the collector, which compared both."""
        for rank, record in call.records.items():
            if call.spread.step.ranks[rank].is_recomputed_otherwise(record):
                words = "computed again what this goes through, and it is not what the forward computed"
                for path in [*call.leaves[rank]][:1]:
                    yield call.found(path, "unexplained", f"rank {rank} {words}")
                return


class Stages:
    """Stages of a pipeline have other layers, so other parameters; single ones, such as tied embeddings, are shared."""

    _FEWEST = 2

    def __init__(self, spread: StepSpread) -> None:
        self._spread = spread

    @cached_property
    def _copied(self) -> dict[int, tuple[int, set[Any]]]:
        """The earlier stage whose parameters a rank has, and the contents that both have, by ranks."""
        contents = {rank: _contents(table) for rank, table in self._spread.parameters.items()}
        copied: dict[int, tuple[int, set[Any]]] = {}
        for rank, of_rank in contents.items():
            for row in self._spread.rows_of(rank, "pipeline"):
                for other in row.ranks[: row.ranks.index(rank)]:
                    shared = of_rank & contents[other]
                    if len(shared) >= max(self._FEWEST, min(len(of_rank), len(contents[other])) / 2):
                        copied.setdefault(rank, (other, shared))
        return copied

    def is_copied(self, rank: int, other: int) -> bool:
        """Whether one of two ranks has the layers of the other, so that equal parameters are no tied ones."""
        return self._copied.get(rank, (-1,))[0] == other or self._copied.get(other, (-1,))[0] == rank

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
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


def _contents(table: Mapping[str, Parameter]) -> set[Any]:
    """The contents of parameters but for constants: those, such as scales of ones, are equal everywhere."""
    before = (parameter.before for parameter in table.values())
    return {_content(leaf) for leaf in before if leaf is not None and not is_constant(leaf)}


#: What is said of a copy that another rank has otherwise.
_OTHERWISE = {
    "gradients": "gets another gradient there: terms of a sum that nothing has added, or another mean",
    "parameters": "is another one there after the step",
    "state": "has another state there after the step",
}


class Copies:
    """Copies of a parameter get the same gradient and stay copies; other parameters do not get one gradient."""

    def __init__(self, spread: StepSpread, stages: Stages) -> None:
        self._spread, self._stages = spread, stages
        self._contents = _ranks_by_content(spread)
        self._copies = cache(self._equal_parameters)

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
        """Findings on the gradients that an optimizer gets, and on parameters and state that it leaves."""
        if not call.operation.record.startswith("Optimizer."):
            return
        rank = call.dump.number
        for side, what, name, leaf in parameter_values(call.dump, call.operation.record):
            if (side, what) == ("input", "parameters"):
                continue
            owner = self._owner(rank, name) if what == "state" else name
            copies = self._copies(rank, owner)
            if what == "gradients" and call.dump.is_partial(leaf):
                words = "the run says itself that ranks have terms of a sum (DTensor); what the step leaves is judged"
                yield call.found(leaf.path, "unjudged", words)
            elif copies:
                yield from self._of_copies(call, leaf, what, owner, copies)
            elif what == "gradients":
                yield from self._of_shards(call, leaf, name)

    def _owner(self, rank: int, state: str) -> str:
        """The parameter that a value of state is of: `emb.weight` of `emb.weight.exp_avg`."""
        return next((name for name in self._spread.parameters[rank] if state.startswith(f"{name}.")), "")

    def _equal_parameters(self, rank: int, name: str) -> dict[int, str]:
        """The names of a parameter's copies by ranks, its own among them; {} where none is known for certain."""
        parameter = self._spread.parameters[rank].get(name)
        if parameter is None or parameter.before is None:
            return {}
        copies = {rank: name}
        for row in self._spread.rows_of(rank, "data", "model"):
            for other in row.ranks:
                copy = self._spread.parameters[other].get(name)
                is_certain = not is_constant(parameter.before) or self._spread.sharing(row) == "data"
                if copy is None or copy.before is None or not is_certain or _are_shards(parameter, other):
                    continue
                if alike([(parameter.dump, parameter.before), (copy.dump, copy.before)]) in ("equal", "constant"):
                    copies[other] = name
        for other, twin in self._contents.get(_content(parameter.before), {}).items():
            is_stage = self._spread.are_stages(rank, other)
            if is_stage and other not in copies and not self._stages.is_copied(rank, other):
                copies[other] = twin
        return copies if len(copies) > 1 else {}

    def _of_copies(
        self, call: RankCall, leaf: Leaf, what: str, owner: str, copies: dict[int, str]
    ) -> Iterator[ValueFinding]:
        compared: list[Alike] = []
        for other, twin in copies.items():
            record = call.records.get(other)
            dump = self._spread.step.ranks[other]
            value = self._value(call, dump, record, leaf.path, (what, owner, twin))
            if value is None:
                if what == "gradients" and record is not None and f"input.parameters.{twin}" in call.leaves[other]:
                    words = f"rank {other} has a copy of this parameter, and no gradient of it"
                    yield call.found(leaf.path, "unexplained", words)
                    return
                continue
            if other != call.dump.number:
                compared.append(alike([(call.dump, leaf), (dump, value)]))
            if compared and compared[-1] == "different":
                called = "" if twin == owner else f" as {twin}"
                words = f"rank {other} has a copy of this parameter{called}, which {_OTHERWISE[what]}"
                yield call.found(leaf.path, "unexplained", words)
                return
        if "unknown" in compared:
            words = "whether copies of its parameter agree is not known: they are only near, not finite, or no numbers"
            yield call.found(leaf.path, "unjudged", words)
        elif compared:
            yield call.found(leaf.path, "placed", placement=f"R over ranks {listed(sorted(copies))}")

    def _value(
        self, call: RankCall, dump: RankDump, record: str | None, path: str, names: tuple[str, str, str]
    ) -> Leaf | None:
        """The same value of a copy on another rank, which may be in the record of another optimizer."""
        what, owner, twin = names
        of_record = call.leaves[dump.number] if record is not None and twin == owner else {}
        if call.operation.record.startswith(CLIP) or what == "state" or f"input.parameters.{twin}" in of_record:
            return of_record.get(path)
        parameter = self._spread.parameters[dump.number][twin]
        return parameter.gradient if what == "gradients" else parameter.after

    def _of_shards(self, call: RankCall, leaf: Leaf, name: str) -> Iterator[ValueFinding]:
        """Findings on one gradient of parameters that are not copies."""
        rank = call.dump.number
        for row in self._spread.rows_of(rank, "model"):
            parameter = self._spread.parameters[rank].get(name)
            if parameter is None or parameter.before is None or parameter.before.shape != leaf.shape:
                continue
            if _are_shards(parameter, row.ranks[-1]):
                continue
            before = []
            for other in row.ranks:
                held = self._spread.parameters[other].get(name)
                if held is not None and held.before is not None:
                    before.append((held.dump, held.before))
            if len(before) < len(row.ranks) or call.alike(leaf.path, row.ranks) != "equal":
                continue
            if alike(before) == "different":
                words = (
                    f"{row} have other values of this parameter, and one gradient of it: copies that do not begin "
                    "equal, or parts of which gradients were averaged"
                )
                yield call.found(leaf.path, "unexplained", words)


def _are_shards(parameter: Parameter, other: int) -> bool:
    """Whether a DTensor says that another rank has another part of it, which may hold the same by chance."""
    stated = parameter.dump.stated(parameter.before) if parameter.before is not None else []
    return any(said.placement.startswith("S") and (other in said.ranks or not said.ranks) for said in stated)


def _ranks_by_content(spread: StepSpread) -> dict[Any, dict[int, str]]:
    """The names of parameters by their contents and ranks."""
    ranks: dict[Any, dict[int, str]] = {}
    for rank, table in spread.parameters.items():
        for name, parameter in table.items():
            if parameter.before is not None and not is_constant(parameter.before):
                ranks.setdefault(_content(parameter.before), {})[rank] = name
    return ranks


class ClipNorms:
    """The norm that gradients are clipped by is that of all gradients, copies counted once, the same on all ranks."""

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
        """Findings on the norm."""
        if not call.operation.record.startswith(CLIP):
            return
        held: list[tuple[RankDump, dict[str, Leaf]]] = []
        norms: dict[int, Leaf] = {}
        for rank, dump in call.spread.step.ranks.items():
            if call.operation.record not in dump:
                return
            of_rank = dump.held(call.operation.record)
            held.append((dump, of_rank))
            outputs = [leaf for path, leaf in of_rank.items() if path.startswith("output")]
            if not outputs or outputs[0].shape:
                return
            norms[rank] = outputs[0]
        path = norms[call.dump.number].path
        if not all(map(_is_finite, norms.values())):
            yield call.found(path, "unjudged", "is not finite on every rank")
            return
        numbers = {rank: float(norm.statistics[3]) for rank, norm in norms.items()}
        expected = self._expected(held)
        tolerance = self._tolerance(leaf for _, of_rank in held for leaf in of_rank.values())
        first = numbers[call.dump.number]
        others = [rank for rank, norm in numbers.items() if abs(norm - first) > tolerance * abs(first)]
        if others:
            words = f"clips by the norm {first:.6g}; rank {others[0]} by another one, {numbers[others[0]]:.6g}"
            yield call.found(path, "unexplained", words)
        elif expected is None:
            words = "whether some gradients are copies is not known: they are of one number each, or nearly alike"
            yield call.found(path, "unjudged", words)
        elif abs(first - expected) > tolerance * expected:
            words = f"gradients are clipped by the norm {first:.6g}; with copies counted once they have {expected:.6g}"
            yield call.found(path, "unexplained", words, distance=abs(first / expected - 1), tolerance=tolerance)
        else:
            yield call.found(path, "placed", placement="R")

    def _tolerance(self, leaves: Iterable[Leaf]) -> float:
        roundoffs = (roundoff_of(leaf.dtype) for leaf in leaves)
        return max(Relative.STATISTICS, Roundoffs.NORM_OF_GRADIENTS * max(roundoffs, default=0.0))

    @staticmethod
    def _expected(held: Sequence[tuple[RankDump, dict[str, Leaf]]]) -> float | None:
        """The norm of all different gradients; None where copies cannot be told, or terms are not added."""
        different: dict[tuple[int, ...], list[tuple[RankDump, Leaf]]] = {}
        total = 0.0
        for dump, of_rank in held:
            for path, leaf in of_rank.items():
                norm = leaf.statistics[3]
                if not path.startswith("input.") or ".gradients." not in f".{path}" or not norm:
                    continue
                if not _is_finite(leaf) or is_constant(leaf) or dump.is_partial(leaf):
                    return None
                alike_shaped = different.setdefault(leaf.shape, [])
                for other in alike_shaped:
                    said = alike([other, (dump, leaf)])
                    if said == "unknown":
                        return None
                    if said == "equal":
                        break
                else:
                    alike_shaped.append((dump, leaf))
                    total += float(norm) ** 2
        return math.sqrt(total)


def _is_finite(leaf: Leaf) -> bool:
    norm = leaf.statistics[3]
    return isinstance(norm, (int, float)) and math.isfinite(norm)


def all_laws(spread: StepSpread) -> tuple[RankLaw, ...]:
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
