"""What became of the difference of one operation, in builtin types, as it travels from workers to the report.

- How two calls of one operation differ in their arguments.
- Names of the parts of a difference: see `terms`.
- What the parts of all outputs of an operation amount to, and what they cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import structs

from msprobe_collector.dump_format import find_dtype
from msprobe_collector.dump_format.leaves import Leaf, canonical_dtype
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import UNKNOWN, Provenance
from pytest_msprobe.answers.finding import ArgumentDifference
from pytest_msprobe.numerics.expected import Relative, Share, Times
from pytest_msprobe.suites.comparison.content import ContentState
from pytest_msprobe.suites.comparison.content.place import Region
from pytest_msprobe.suites.comparison.operations import OperationComparison
from pytest_msprobe.suites.comparison.values import DistanceLimits, ValueComparison, is_whole
from pytest_msprobe.verdicts import FigureWire, VerdictRow

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.figures import Figures


Differences: TypeAlias = tuple[ArgumentDifference, ...]
Number: TypeAlias = int | float | None
#: Of the target and of the golden run.
Numbers: TypeAlias = tuple[Number, Number]

#: Name of the difference where the two sides call different APIs.
OTHER_API = "api"
#: Of two calls of dropout that are alike and drop other elements.
OTHER_ELEMENTS = (ArgumentDifference("other elements are dropped (compare seeds)"),)


def other_arguments(compared: OperationComparison) -> Differences:
    """Arguments that one side has otherwise or alone, of which no values of tensors are compared."""
    values = filter(_is_other, compared.values)
    return tuple(ArgumentDifference(value.path, _text(value.target), _text(value.golden)) for value in values)


def _is_other(value: ValueComparison) -> bool:
    target, golden = value.target, value.golden
    if value.is_output or value.path.startswith("parameters."):
        return False
    if target is None or golden is None:
        leaf = target or golden
        return value.status == "unmatched" and leaf is not None and not leaf.is_none
    return value.status == "error" and (target.tensor is None or golden.tensor is None)


def _text(leaf: Leaf | None) -> str:
    if leaf is None or leaf.is_none:
        return ""
    return "tensor" if leaf.is_tensor else str(leaf.statistics[0])


def numbers_given(compared: OperationComparison) -> tuple[Numbers, ...]:
    """The numbers that an operation gives differently, as a count and `item` do."""
    pairs = ((_given(value.target), _given(value.golden)) for value in compared.values if value.is_output)
    return tuple(pair for pair in pairs if None not in pair and pair[0] != pair[1])


def numbers_taken(compared: OperationComparison) -> tuple[Numbers, ...]:
    """The numbers that an operation gets otherwise; () where it gets something else otherwise."""
    taken: list[Numbers] = []
    for value in filter(_is_other, compared.values):
        target, golden = _parts(value.target), _parts(value.golden)
        if not target or len(target) != len(golden):
            return ()
        taken += [pair for pair in zip(target, golden) if pair[0] != pair[1]]
    return tuple(taken)


def _given(leaf: Leaf | None) -> Number:
    """The number in a tensor of one element, or the number that a call returns; None of all else."""
    if leaf is None:
        return None
    number = leaf.statistics[0] if leaf.tensor is None or math.prod(leaf.shape) == 1 else None
    return number if type(number) in (int, float) else None


def _parts(leaf: Leaf | None) -> tuple[Number, ...]:
    """A number, or those of a slice; () of any other value."""
    if leaf is None:
        return ()
    value: Any = leaf.value
    parts = (value.start, value.stop, value.step) if isinstance(value, slice) else (value,)
    return parts if {type(part) for part in parts} <= {int, float, type(None)} else ()


def listed_differences(differences: Differences) -> str:
    """The differences in words: `kwargs.is_causal True against none`."""
    return ", ".join(map(_in_words, differences))


def _in_words(difference: ArgumentDifference) -> str:
    if not (difference.target or difference.golden):
        return difference.name
    sides = f"{difference.target or 'none'} against {difference.golden or 'none'}"
    return sides if difference.name == OTHER_API else f"{difference.name} {sides}"


def numbers_of(difference: ArgumentDifference) -> tuple[float, float] | None:
    """Both sides as numbers; None where one is none."""
    try:
        return float(difference.target), float(difference.golden)
    except ValueError:
        return None


def is_of_sizes(difference: ArgumentDifference) -> bool:
    """Whether both sides are numbers without a sign, as sizes are."""
    return difference.target.isdecimal() and difference.golden.isdecimal()


#: `equal`: the same bits. `rounding`: differs, and nothing but rounding and inputs made it so. `inherited`: the same,
#: and the inputs made most of it. `fault`: born or defined here. `contained`: of a Cell, whose calls are accounted for.
#: `unmatched`: only one side has it. `unaccounted`: no benchmark can compute it.
#: Without tensors, beside `equal`, `contained` and `unmatched`: `within`: no output is beyond its tolerance. `first`:
#: one is, and the inputs are not. `carried`: one is, and the inputs are, too.
Kind = Literal[
    "equal", "rounding", "inherited", "fault", "contained", "unmatched", "unaccounted", "within", "first", "carried"
]
#: What the content of values is known by; `values`: by their elements, of which nothing was computed again; `none`: the
#: record has no tensor.
Basis = Literal["tensors", "values", "fingerprints", "checksums", "sketches", "statistics", "none"]


class ValueKey(msgspec.Struct, frozen=True, array_like=True):
    """Content of one value on both sides, for the data flow.

    Attributes:
        path: place in the target's record, else in the golden one's.
        is_output: whether the operation made it.
        target, golden: keys of its content; "" where a side has none.
        distance: relative difference of both; None where they were not compared.
        shape: of the tensor.
        is_beyond: whether that is more than the rounding of the coarser dtype leaves after some operations.
        is_integer: whether it holds integers or truth values.
        trains: whether it requires a gradient, on both sides: `True`, `False`, "" when unknown.
        golden_path: place in the golden record where it is another one; else "".
        limits: largest distance by the dtype of the target and by that of the golden run.
        excess: how many times the larger of `limits` it is off; None where no figures are known.
        max_abs: largest difference of an element; None likewise.
        origins: where the collectors saw it come from.
        golden_shape: the shape in the golden run, where it has the value.
        is_weak: whether its content is so plain, as that of a constant is, that equal content says nothing.
        is_one_dtype: whether both sides have it in one dtype.
    """

    path: str
    is_output: bool
    target: str
    golden: str
    distance: float | None
    shape: tuple[int, ...]
    is_beyond: bool = False
    is_integer: bool = False
    trains: tuple[str, str] = ("", "")
    golden_path: str = ""
    limits: tuple[float, float] = (0.0, 0.0)
    excess: float | None = None
    max_abs: float | None = None
    origins: tuple[Provenance, Provenance] = (UNKNOWN, UNKNOWN)
    is_weak: bool = False
    is_one_dtype: bool = True
    golden_shape: tuple[int, ...] | None = None

    @property
    def is_frozen_on_one_side(self) -> bool:
        """Whether it requires a gradient on one side only."""
        return set(self.trains) == {"True", "False"}

    @property
    def differs(self) -> bool:
        """Whether both sides have it, and differ."""
        return bool(self.target and self.golden) and self.target != self.golden


def any_differs(keys: Iterable[ValueKey]) -> bool:
    """Return whether a value differs between the two sides."""
    return any(map(attrgetter("differs"), keys))


def any_beyond(keys: Iterable[ValueKey]) -> bool:
    """Return whether a value is beyond its limit."""
    return any(map(attrgetter("is_beyond"), keys))


def inputs_of(keys: Iterable[ValueKey]) -> list[ValueKey]:
    """Return the values that went into an operation."""
    return [key for key in keys if not key.is_output]


def outputs_of(keys: Iterable[ValueKey]) -> list[ValueKey]:
    """Return the values that came out of an operation."""
    return list(filter(attrgetter("is_output"), keys))


def largest_distance(keys: Iterable[ValueKey]) -> float:
    """Return the largest relative difference of a value; 0 without any, and for values that were not compared."""
    return max((key.distance or 0.0 for key in keys), default=0.0)


def key_at(keys: Iterable[ValueKey], path: str) -> ValueKey | None:
    """Return the value at `path` of a record; None where it has none."""
    return next((key for key in keys if key.path == path), None)


class OutputAccount(msgspec.Struct, frozen=True):
    """The difference of one output.

    Attributes:
        path: place in the record.
        size: 2-norm of the difference over that of the golden output.
        sizes: the same of each part, by the names of `terms.PARTS`.
        shares: of each part in the difference; they add up to 1.
        growth: relative size of the inherited part over the largest relative difference of an input; None without one.
        blamed: parts that are faults of the operation, with a sentence each.
        worst: place of the largest element of the first blamed part.
        ratio: how many times its tolerance the first blamed part that was judged is; None for none.
        pattern: what the elements have in common that arise here wrongly; "" where nothing is known.
    """

    path: str
    size: float
    sizes: dict[str, float]
    shares: dict[str, float]
    growth: float | None = None
    blamed: dict[str, str] = {}
    worst: tuple[int, ...] | None = None
    ratio: float | None = None
    pattern: str = ""


class Account(FigureWire, msgspec.Struct, frozen=True):
    """What became of the difference of one operation.

    Attributes:
        kind: see `Kind`.
        reason: of an `unaccounted` one, why.
        is_unreadable: whether that is since a dump cannot be read.
        outputs: those that differ and could be split.
        keys: of all tensors.
        definition: how the two sides call the operation differently, in more than float dtypes; empty when alike.
        partner: golden record; "" for none.
        place, partner_place: in the order of execution of its own dump; -1 for none.
        dtype: how the dtypes of its outputs differ: `BFloat16 against Float32`.
        is_cast: whether those of its inputs do not.
        basis: what its values are known by.
        is_noise: without tensors, whether each value that differs has a tolerance from a noise run.
        is_given: whether a value that it was given is beyond its limit, or off by a tenth of what its outputs are; of a
            backward also one of its forward, as it was recorded or computed again.
        recomputed: of a backward, whether its forward got or gave other values when a checkpoint computed it again, in
            the target and in the golden run.
        is_compiled: without a partner, whether one run computes it in compiled code.
        content: of two runs with different calls, what is known of the values that it makes.
        region: the calls in which the two runs part, of the record that stands for them.
        gives, takes: numbers (target, golden) that it gives differently, as a count does; those that are all that it
            gets otherwise.
    """

    kind: Kind
    reason: str = ""
    outputs: tuple[OutputAccount, ...] = ()
    keys: tuple[ValueKey, ...] = ()
    definition: Differences = ()
    dtype: str = ""
    is_cast: bool = False
    partner: str = ""
    place: int = -1
    partner_place: int = -1
    basis: Basis = "tensors"
    is_noise: bool = False
    is_given: bool = False
    recomputed: tuple[bool, bool] = (False, False)
    is_compiled: bool = False
    content: ContentState = ""
    region: Region | None = None
    is_unreadable: bool = False
    gives: tuple[Numbers, ...] = ()
    takes: tuple[Numbers, ...] = ()

    @property
    def blamed(self) -> list[tuple[OutputAccount, str, str]]:
        """(output, part, sentence) of each fault."""
        return [(output, part, text) for output in self.outputs for part, text in output.blamed.items()]


@dataclass(frozen=True, slots=True)
class AccountStep:
    """One record of a run, with its account.

    Attributes:
        operation: its name taken apart; of the golden record when only that side has it.
        account: what became of its difference.
        cells: Cells that it ran in, outermost first.
        source: `file:line` of the training script; "" when unknown.
    """

    operation: Operation
    account: Account
    cells: tuple[str, ...] = ()
    source: str = ""

    @classmethod
    def of(cls, row: VerdictRow) -> AccountStep | None:
        """The record of a row, with its attachment; None where nothing was accounted for."""
        if row.attachment is None or "account" not in row.attachment:
            return None
        summary = row.attachment["summary"]
        operation = Operation.of(summary["record"], summary["order"])
        account = Account.from_wire(row.attachment["account"])
        if row.place is None:
            return cls(operation, account)
        return cls(operation, account, row.place.cells, row.place.source.partition(", in ")[0])

    @property
    def record(self) -> str:
        """Name of the record."""
        return self.operation.record

    @property
    def cell(self) -> str:
        """The innermost Cell that it ran in; "" without one."""
        return self.cells[-1] if self.cells else ""

    @property
    def has_other_type(self) -> bool:
        """Whether the partner's API is of another type: `Torch` for `Mint`."""
        partner = self.account.partner
        return bool(partner) and partner.partition(".")[0] != self.record.partition(".")[0]

    @property
    def differs(self) -> bool:
        """Whether one of its values does; without tensors, by more than it may."""
        if self.account.basis == "tensors":
            return any_differs(self.account.keys)
        return any_beyond(self.account.keys)

    @property
    def first_beyond(self) -> ValueKey | None:
        """The first output that is beyond its limit; None without one."""
        return next(filter(attrgetter("is_beyond"), self.outputs), None)

    @property
    def gives_floats(self) -> bool:
        """Whether an output holds neither integers nor truth values."""
        return not all(map(attrgetter("is_integer"), self.outputs))

    @property
    def inputs(self) -> list[ValueKey]:
        """Values that went into the operation."""
        return inputs_of(self.account.keys)

    @property
    def outputs(self) -> list[ValueKey]:
        """Values that came out of the operation."""
        return outputs_of(self.account.keys)


def value_key(
    value: ValueComparison,
    contents: tuple[str, str],
    distance: float | None,
    limits: DistanceLimits,
    figures: Figures | None = None,
    *,
    is_integer: bool,
) -> ValueKey:
    """Return the key of a tensor whose sides have these `contents`; equal ones have no distance."""
    target, golden, leaf = value.target, value.golden, value.leaf
    fields: dict[str, Any] = {"distance": 0.0, "excess": 0.0, "max_abs": 0.0}
    if contents[0] != contents[1]:
        fields = {"distance": distance, **_difference(value, limits, figures)}
    if golden is not None:
        fields["golden_shape"] = golden.shape
    if target is not None and golden is not None:
        fields["golden_path"] = "" if golden.path == target.path else golden.path
        fields["is_one_dtype"] = canonical_dtype(target.dtype) == canonical_dtype(golden.dtype)
    trains = getattr(target, "requires_grad", ""), getattr(golden, "requires_grad", "")
    fields |= {"shape": leaf.shape, "is_integer": is_integer, "trains": trains, "is_weak": _is_weak(leaf)}
    fields |= {"limits": _limits(value, limits), "origins": _origins(value)}
    return ValueKey(value.path, value.is_output, *contents, **fields)


def _difference(value: ValueComparison, limits: DistanceLimits, figures: Figures | None) -> dict[str, Any]:
    """Return the fields of a key that say by how much a value differs."""
    counts = value.status != "skip" or value.tolerance is not None
    if figures is None:
        return {"is_beyond": counts and is_beyond(value, limits)}
    dtypes = map(attrgetter("dtype"), filter(None, (value.target, value.golden)))
    excess = limits.excess(figures, *dtypes, limit=value.limit)
    return {"is_beyond": counts and not excess <= 1, "excess": excess, "max_abs": figures.metrics.max_abs}


def _limits(value: ValueComparison, limits: DistanceLimits) -> tuple[float, float]:
    if value.tolerance is not None:
        return value.tolerance.limit, value.tolerance.limit
    target, golden = getattr(value.target, "dtype", ""), getattr(value.golden, "dtype", "")
    limit = limits.limit(target)
    return limit, limit if golden == target else limits.limit(golden)


def _origins(value: ValueComparison) -> tuple[Provenance, Provenance]:
    """Where both sides come from; memory whose content means nothing is uninitialised."""
    mine, theirs = getattr(value.target, "provenance", UNKNOWN), getattr(value.golden, "provenance", UNKNOWN)
    if value.status == "skip":
        return mine._replace(is_uninitialized=True), theirs._replace(is_uninitialized=True)
    return mine, theirs


def _is_weak(leaf: Leaf) -> bool:
    """Whether all elements are equal, as far as the statistics say; a single number that is no round one is not."""
    high, low = leaf.statistics[:2]
    if high is None or high != low:
        return False
    return math.prod(leaf.shape) != 1 or isinstance(high, (str, bool)) or float(high).is_integer()


def is_beyond(value: ValueComparison, limits: DistanceLimits) -> bool:
    """Whether a tensor is farther off than its tolerance, else than the limit of its dtype, as the dumps say.

    Other checksums are infinitely far. Fingerprints alone do not count, since bits may differ by rounding, except of
    integers.
    """
    target, golden = value.target, value.golden
    if target is None or golden is None or value.status not in ("pass", "warning", "error"):
        return False
    if target.data_name and golden.data_name:
        return value.status == "error"
    if value.estimate is not None:
        return value.is_beyond
    if value.distance is None:
        return is_whole(golden)
    limit = value.limit if value.limit is not None else limits.limit(target.dtype, golden.dtype)
    return not value.distance <= limit


def account_of(compared: OperationComparison, kind: Kind, keys: Sequence[ValueKey], **fields: Any) -> Account:
    """An account of an operation with its places; `unmatched` without a partner, whatever the `kind`."""
    fields["place"], fields["partner_place"] = compared.places
    fields |= {"content": compared.content, "region": compared.region, "recomputed": compared.recomputed}
    fields |= {"keys": tuple(keys), "is_compiled": compared.compiled is not None}
    if compared.partner is None:
        return Account("unmatched", **fields)
    return Account(kind, partner=compared.partner.record, **fields)


def dtype_change(values: Sequence[ValueComparison]) -> tuple[str, bool]:
    """(how the dtypes of outputs differ, whether those of the inputs do not); ("", False) when outputs agree."""
    changed, inputs = "", []
    for value in values:
        target, golden = value.target, value.golden
        if target is None or golden is None:
            continue
        if not value.is_output:
            inputs.append((target, golden))
        elif not changed and target.dtype != golden.dtype and target.tensor and golden.tensor:
            mine, theirs = canonical_dtype(target.dtype), canonical_dtype(golden.dtype)
            # Integers of another width are no change.
            if mine != theirs and {_kind(mine), _kind(theirs)} != {"int"}:
                changed = f"{mine} against {theirs}"
    tensors = ((mine, theirs) for mine, theirs in inputs if changed and mine.tensor and theirs.tensor)
    dtypes = [(mine.dtype, theirs.dtype) for mine, theirs in tensors if _kind(mine.dtype) in ("float", "complex")]
    return changed, bool(dtypes) and all(len({*map(canonical_dtype, pair)}) == 1 for pair in dtypes)


def _kind(dtype: str) -> str:
    known_dtype = find_dtype(dtype)
    return known_dtype.kind if known_dtype is not None else ""


BORN_TARGET, INHERITED, DEFINED, BORN_GOLDEN = PARTS = ("born_target", "inherited", "defined", "born_golden")


def kind_of_outputs(outputs: Sequence[OutputAccount]) -> Kind:
    """`fault`, `inherited` or `rounding`."""
    if any(map(attrgetter("blamed"), outputs)):
        return "fault"
    is_inherited = any(abs(output.shares.get(INHERITED, 0.0)) >= Share.INHERITED for output in outputs)
    return "inherited" if is_inherited else "rounding"


def of_equal_inputs(output: OutputAccount) -> OutputAccount:
    """Equal inputs pass no difference on: the two calls differ in something that is no tensor, and not in the dumps."""
    if (
        output.blamed
        or abs(output.shares[INHERITED]) < Share.BLAMED
        or output.sizes[INHERITED] < Relative.EXACT_RESULTS
    ):
        return output
    words = "defined differently: all inputs are equal, and the exact results are not"
    return structs.replace(output, blamed={DEFINED: words})


def of_other_shapes(
    definition: Differences, inputs: Sequence[ValueKey], outputs: Sequence[ValueComparison]
) -> Iterator[OutputAccount]:
    """Outputs whose shapes differ though those of the inputs do not."""
    if not definition or any(key.distance is None and key.target and key.golden for key in inputs):
        return
    for value in outputs:
        if value.target is None or value.golden is None:
            continue
        if math.prod(value.target.shape) != math.prod(value.golden.shape):
            shapes = f"shape {list(value.target.shape)} against {list(value.golden.shape)}"
            words = f"defined differently: {listed_differences(definition)}, and so {shapes}"
            yield OutputAccount(value.path, math.inf, {}, {}, blamed={DEFINED: words})


def of_given_back(key: ValueKey) -> OutputAccount:
    """An output that has the bytes of an input on both sides: all of its difference is that of the input."""
    size = math.inf if key.distance is None else key.distance
    parts = {name: float(name == INHERITED) for name in PARTS}
    return OutputAccount(key.path, size, {name: size * part for name, part in parts.items()}, parts)


def with_growth(output: OutputAccount, inputs: float) -> OutputAccount:
    """The account with its growth: relative size of the inherited part over the largest difference among `inputs`.

    None where an input differs by less than a rounding of its norm, which a masked value may be most of.
    """
    growth = output.sizes[INHERITED] / inputs if 0 < inputs < math.inf else math.inf
    return structs.replace(output, growth=growth) if growth < Times.LARGEST_GROWTH else output
