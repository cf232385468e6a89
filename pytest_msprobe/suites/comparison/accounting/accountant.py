"""Splits the differences of operations, one call at a time.

How two sides call one operation: other APIs, other arguments, other dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TypeAlias

import numpy as np
from msgspec import structs

from msprobe_collector.dump_format import (
    DIRECTIONS,
    Direction,
    Dtype,
    DumpError,
    TensorValue,
    array_dtype,
    parse_api_name,
    split_record_name,
)
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.answers.finding import ArgumentDifference
from pytest_msprobe.apis.fact_table import says_where
from pytest_msprobe.cases.recorded_call import DropoutCall, RecordedCall, RecordedOutput, is_dropout
from pytest_msprobe.engines.protocol import (
    Array,
    Call,
    LeafPath,
    NotJudged,
    Unsupported,
    leaves,
    map_attributes,
    map_leaves,
)
from pytest_msprobe.engines.selection import Engines
from pytest_msprobe.numerics.dtypes import float_format, kind_of, unit_roundoff
from pytest_msprobe.numerics.expected import Share, Times
from pytest_msprobe.suites.comparison.accounting.account import (
    BORN_GOLDEN,
    BORN_TARGET,
    DEFINED,
    OTHER_API,
    OTHER_ELEMENTS,
    Account,
    Differences,
    OutputAccount,
    ValueKey,
    account_of,
    any_beyond,
    dtype_change,
    inputs_of,
    is_of_sizes,
    kind_of_outputs,
    largest_distance,
    listed_differences,
    numbers_given,
    numbers_taken,
    of_equal_inputs,
    of_given_back,
    of_other_shapes,
    other_arguments,
    outputs_of,
    value_key,
    with_growth,
)
from pytest_msprobe.suites.comparison.accounting.terms import Terms, content_of, load, split
from pytest_msprobe.suites.comparison.figures import Figures, measure_pair
from pytest_msprobe.suites.comparison.matching import tensor_order
from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.sides import ComparedDump
from pytest_msprobe.suites.comparison.values import ValueComparison

Tensors: TypeAlias = Mapping[LeafPath, Array]


def argument_differences(target: Call, golden: Call, *, with_dtypes: bool = True) -> Differences:
    """How two calls differ beside the values of their tensors and where they run.

    A tensor that one call gets and the other one does not is a difference; None is no argument. A limit of a call's
    own float dtype, such as the -3.4e38 that masks are made of, is the same in any dtype; without `with_dtypes` so are
    the float dtypes that it asks for.
    """
    apis = [f"{call.api.type}.{call.api.api} ({call.framework})" for call in (target, golden)]
    is_one_api = apis[0] == apis[1]
    if is_one_api and _plain(target) == _plain(golden):
        return ()
    mine = _plain(target, _limits_of_dtypes(target), with_dtypes=with_dtypes)
    theirs = _plain(golden, _limits_of_dtypes(golden), with_dtypes=with_dtypes)
    if is_one_api:
        names = (name for name in dict.fromkeys((*mine, *theirs)) if mine.get(name) != theirs.get(name))
        return tuple(ArgumentDifference(name, mine.get(name, ""), theirs.get(name, "")) for name in names)
    other_api, others = ArgumentDifference(OTHER_API, *apis), (_only_in(mine, theirs), _only_in(theirs, mine))
    return (other_api, ArgumentDifference("arguments", *others)) if any(others) else (other_api,)


def _only_in(arguments: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Arguments that are not tensors and that the other API does not get in any place."""
    return ", ".join(value for value in arguments.values() if value not in (*other.values(), "tensor", "None"))


def _plain(call: Call, limits: Mapping[float, str] | None = None, *, with_dtypes: bool = True) -> dict[str, str]:
    """Arguments and attributes that are not tensors, as text, by their place; numbers that have a name by that."""
    texts: dict[str, str] = {}

    def note(path: LeafPath, value: object) -> None:
        place = ".".join(map(str, path))
        if value is None or says_where(f"{call.api.type}.{call.api.api}", place, value):
            return
        text = "tensor" if hasattr(value, "__array_interface__") else repr(getattr(value, "name", value))
        if limits and isinstance(value, float):
            text = limits.get(value, text)
        elif not with_dtypes and isinstance(value, Dtype) and value.kind == "float":
            text = "float"
        texts[place] = text

    map_leaves(call, note)
    map_attributes(call, note)
    return texts


def _limits_of_dtypes(call: Call) -> dict[float, str]:
    """What the limits of the float dtypes of its tensors and arguments are, by their values."""
    names: dict[float, str] = {}
    for _, value in leaves(call):
        dtype = array_dtype(value) if isinstance(value, Dtype) else getattr(value, "dtype", None)
        if dtype is not None and kind_of(dtype) == "float":
            limits = float_format(dtype)
            names |= {-limits.largest: "lowest of its dtype", limits.largest: "largest of its dtype"}
            names |= {limits.smallest_normal: "smallest of its dtype"}
    return names


def placed(calls: tuple[Call, Call], target: Tensors, golden: Tensors) -> dict[LeafPath, Array] | None:
    """The golden tensors at the target's places: those of equal name, else in order; None when shapes do not fit.

    A tensor that the target alone gets, or gets in another shape where both sides name it, stays. Integers get the
    target's dtype: an API may take one width only.
    """
    if len(target) != len(golden):
        names = {path: path for path in target if path in golden}
        if not names:
            return None
    elif target.keys() == golden.keys() and not any(map(_order_of, calls)):
        names = dict(zip(target, target))
    else:
        names = dict(zip(_in_order(target, calls[0]), _in_order(golden, calls[1])))
    arrays = dict(target)
    for path, name in names.items():
        array, other = golden[name], target[path]
        if array.shape != other.shape:
            return None
        is_integer = array.dtype.kind in "iu" and other.dtype.kind in "iu"
        arrays[path] = array.astype(other.dtype) if is_integer else array
    return arrays


def _order_of(call: Call) -> tuple[int, ...]:
    return tensor_order(f"{call.api.type}.{call.api.table_name}", call.framework)


def _in_order(tensors: Tensors, call: Call) -> list[LeafPath]:
    """The places of the tensors of a call as PyTorch orders what stands there."""
    order = _order_of(call)
    places = zip((*order, *range(len(order), len(tensors))), tensors)
    return [path for _, path in sorted(places, key=itemgetter(0))]


def _given_back(compared: OperationComparison, keys: Sequence[ValueKey]) -> dict[str, OutputAccount]:
    """Outputs that are an input, on both sides and in one shape, by their places: nothing was computed there."""
    inputs, accounts = set(map(_CONTENTS, inputs_of(keys))), {}
    for value, key in zip(filter(attrgetter("is_tensor"), compared.values), keys):
        if key.is_output and _CONTENTS(key) in inputs and key.differs and _has_one_shape(value):
            accounts[key.path] = of_given_back(key)
    return accounts


#: Keys of the content of a value in the target and in the golden run.
_CONTENTS = attrgetter("target", "golden")


def _has_one_shape(value: ValueComparison) -> bool:
    return value.target is not None and value.golden is not None and value.target.shape == value.golden.shape


@dataclass(slots=True)
class _CallPair:
    """An API call on both sides, with what both benchmarks compute.

    Attributes:
        definition: how the sides call it differently; empty when alike.
        is_defined_otherwise: whether they do in more than float dtypes, which may saturate: a run in another precision.
    """

    target: RecordedCall
    golden: RecordedCall
    definition: Differences
    is_defined_otherwise: bool


class Accountant:
    """Accounts for the operations of one pair of dumps; holds the tensors of one API call at a time."""

    def __init__(self, comparison: DumpComparison, engines: Engines, *, max_memory_bytes: int) -> None:
        """An accountant that lets `engines` compute; calls that may need more memory are not accounted for."""
        self._comparison = comparison
        self._target = comparison.target
        self._golden = comparison.golden
        self._engines = engines
        self._max_memory_bytes = max_memory_bytes
        self._pair: _CallPair | NotJudged | None = None
        self._name = ""
        # The call of the last forward, and its values: its backward uses what it kept.
        self._forward: tuple[str, Sequence[ValueKey]] = "", ()

    def close(self) -> None:
        """Release the tensors of the last API call."""
        self._close_pair()
        self._comparison.release()

    def _close_pair(self) -> None:
        if isinstance(self._pair, _CallPair):
            self._pair.target.close()
            self._pair.golden.close()
        self._pair, self._name = None, ""

    def account(self, compared: OperationComparison) -> Account:
        """What became of the difference of an operation, which was compared `for_account`."""
        account, gives = self._account(compared), numbers_given(compared)
        takes = numbers_taken(compared) if account.definition else ()
        return structs.replace(account, gives=gives, takes=takes) if gives or takes else account

    def _account(self, compared: OperationComparison) -> Account:
        operation = compared.operation
        keys = [*map(self._key, filter(attrgetter("is_tensor"), compared.values))]
        if compared.partner is None:
            return account_of(compared, "unmatched", keys)
        if operation.holds_calls and self._is_contained(operation, keys):
            definition = () if operation.is_cell else other_arguments(compared)
            return account_of(compared, "contained", keys, definition=definition)
        meaningless = {value.path for value in compared.values if value.status == "skip" and value.tolerance is None}
        counting = [key for key in keys if key.path not in meaningless]
        is_given = self._is_given(compared, counting) or True in compared.recomputed
        if operation.phase == "forward":
            self._forward = operation.call, counting
        changed = {key.path for key in counting if key.is_output and key.differs}
        dtype, is_cast = dtype_change(compared.values)
        if not changed and not dtype:
            definition = self._other_arguments(compared, compared.partner)
            return account_of(compared, "equal", keys, definition=definition)
        base = account_of(compared, "unaccounted", keys, dtype=dtype, is_cast=is_cast, is_given=is_given)
        if operation.is_cell:
            return structs.replace(base, reason="the dump holds none of the calls of this layer")
        try:
            return self._split(compared, compared.partner, base, changed)
        except (NotJudged, Unsupported, DumpError, MemoryError) as error:
            is_unreadable = error.is_unreadable if isinstance(error, NotJudged) else isinstance(error, DumpError)
            reason = str(error).partition("\n")[0] or type(error).__name__
            return structs.replace(base, reason=reason, is_unreadable=is_unreadable)

    def _is_given(self, compared: OperationComparison, keys: Sequence[ValueKey]) -> bool:
        """Whether what a record was given is beyond its limit, or differs enough to make its outputs differ as much."""
        inputs, operation = inputs_of(keys), compared.operation
        if operation.phase != "forward" and operation.call == self._forward[0]:
            inputs += self._forward[1]
        # PyTorch gives a gradient the shape of its value: one of two shapes is no gradient of an argument.
        is_sure = operation.phase == "backward" and self._target.framework == self._golden.framework == "pytorch"
        other = {value.path for value in compared.values if is_sure and not _has_one_shape(value)}
        made = max((_distance(key) for key in keys if key.is_output and key.path not in other), default=0.0)
        before = largest_distance(inputs)
        return any_beyond(inputs) or (before > 0 and made <= Times.GROWTH * before)

    def _other_arguments(self, compared: OperationComparison, partner: Operation) -> Differences:
        """How two calls that return the same differ in what is no value of a tensor."""
        other = other_arguments(compared)
        if not other or compared.operation.is_cell or compared.operation.phase != "forward":
            return ()
        try:
            pair = self._pair_of(compared.operation, partner)
        except (NotJudged, Unsupported, DumpError, MemoryError):
            return other
        return pair.definition if pair.is_defined_otherwise else ()

    def _split(self, compared: OperationComparison, partner: Operation, base: Account, changed: set[str]) -> Account:
        """The account with the parts of each output at the places `changed`. Raises NotJudged."""
        given_back = _given_back(compared, base.keys)
        if given_back and changed <= given_back.keys() and not base.dtype:
            definition = self._other_arguments(compared, partner)
            return structs.replace(base, kind="inherited", outputs=tuple(given_back.values()), definition=definition)
        pair = self._pair_of(compared.operation, partner)
        direction: Direction = next(direction for direction in DIRECTIONS if direction == compared.operation.phase)
        pairs = [value for value in compared.values if value.is_output and value.target and value.golden]
        inputs = inputs_of(base.keys)
        farthest = largest_distance(inputs)
        split = self._outputs(pair, direction, pairs, changed - given_back.keys())
        outputs = [with_growth(output, farthest) for output in split]
        if max((output.growth or 0.0 for output in outputs), default=0.0) > Times.STEEP_GROWTH:
            farthest = max(map(self._distance_of_differing, compared.values), default=0.0)
            outputs = [with_growth(output, farthest) for output in split]
        outputs += [output for path, output in given_back.items() if path in changed]
        if direction == "forward":
            if not base.dtype and all(key.target and key.target == key.golden for key in inputs):
                outputs = list(map(of_equal_inputs, outputs))
            outputs += of_other_shapes(pair.definition, inputs, pairs)
        if base.is_given and pair.definition and all(map(is_of_sizes, pair.definition)):
            outputs = list(map(_as_computed, outputs))
        kind, reason = kind_of_outputs(outputs), ""
        if unjudged := changed - {output.path for output in outputs}:
            reason = f"the benchmark has no value for {', '.join(sorted(unjudged))}"
            kind = "fault" if kind == "fault" else "unaccounted"
        definition = pair.definition if pair.is_defined_otherwise else ()
        return structs.replace(base, kind=kind, reason=reason, outputs=tuple(outputs), definition=definition)

    def _distance_of_differing(self, value: ValueComparison) -> float:
        """Relative distance of an input over the elements that differ: beside what masks others they have no size."""
        target, golden = self._arrays(value) if value.is_tensor and not value.is_output else (None, None)
        if target is None or golden is None or target.shape != golden.shape or target.dtype.kind in "iub":
            return 0.0
        differs = (target != golden) & np.isfinite(target) & np.isfinite(golden)
        mine, theirs = target[differs].astype(np.complex128), golden[differs].astype(np.complex128)
        return float(np.linalg.norm(mine - theirs) / max(np.linalg.norm(theirs), np.finfo(np.float64).tiny))

    def _is_contained(self, operation: Operation, keys: Sequence[ValueKey]) -> bool:
        """Whether a layer or optimizer needs no account: its calls are in the dump, or it returns its inputs."""
        if operation.phase == GRADIENTS or not operation.is_cell:
            return self._target.has_calls
        is_identity = set(map(_CONTENTS, outputs_of(keys))) <= set(map(_CONTENTS, inputs_of(keys)))
        return operation.call in self._target.layers_of_calls or (self._target.has_calls and is_identity)

    def _key(self, value: ValueComparison) -> ValueKey:
        contents = value.contents
        if contents is None:  # not compared: unmatched, unreadable, or of no meaning
            target, golden = self._arrays(value)
            contents = content_of(value.target, target), content_of(value.golden, golden)
        tensor = value.target.value if value.target is not None and contents[0].startswith("v") else None
        dtype = tensor.dtype if isinstance(tensor, TensorValue) else None
        is_integer = dtype is not None and dtype.kind in ("int", "bool")
        figures = None
        if contents[0] != contents[1]:
            figures = value.figures or self._figures(value)
        distance = figures.distance if figures is not None else None
        return value_key(value, contents, distance, self._comparison.limits, figures, is_integer=is_integer)

    def _arrays(self, value: ValueComparison) -> tuple[Array | None, Array | None]:
        return load(value.target, self._target.tensors), load(value.golden, self._golden.tensors)

    def _figures(self, value: ValueComparison) -> Figures | None:
        """Figures of as many elements in another shape, or of a value that no verdict was asked for."""
        target, golden = self._arrays(value)
        if target is None or golden is None or target.size != golden.size:
            return None
        figures = measure_pair(target.reshape(-1), golden.reshape(-1))
        return figures if not figures.metrics.structural else None

    def _pair_of(self, operation: Operation, partner: Operation) -> _CallPair:
        if self._name != operation.call:
            self._close_pair()
            self._name = operation.call
            try:
                self._pair = self._made(operation, partner)
            except (Unsupported, DumpError) as error:
                self._pair = NotJudged("skip", str(error), is_unreadable=isinstance(error, DumpError))
            except NotJudged as error:
                self._pair = error
        if not isinstance(self._pair, _CallPair):
            assert self._pair is not None
            raise NotJudged(self._pair.status, self._pair.message, is_unreadable=self._pair.is_unreadable)
        return self._pair

    def _made(self, operation: Operation, partner: Operation) -> _CallPair:
        if split_record_name(operation.record) is None or split_record_name(partner.record) is None:
            raise NotJudged("skip", "it is not an API call")
        target, golden = self._call(self._target, operation.call), self._call(self._golden, partner.call)
        calls = target.case.call, golden.case.call
        differing = argument_differences(*calls)
        in_more = differing and argument_differences(*calls, with_dtypes=False)
        if isinstance(target, DropoutCall) and isinstance(golden, DropoutCall) and not differing:
            differing = in_more = () if target.drops_as(golden) else OTHER_ELEMENTS
        return _CallPair(target, golden, differing, is_defined_otherwise=bool(in_more))

    def _call(self, side: ComparedDump, name: str) -> RecordedCall:
        kind = DropoutCall if is_dropout(parse_api_name(name), side.framework) else RecordedCall
        memory = self._max_memory_bytes // 2
        return kind(side, name, self._engines, with_backward=f"{name}.backward" in side, max_memory_bytes=memory)

    def _outputs(
        self, pair: _CallPair, direction: Direction, values: Sequence[ValueComparison], changed: set[str]
    ) -> list[OutputAccount]:
        target = {output.path: output for output in pair.target.outputs(direction)}
        golden = {output.path: output for output in pair.golden.outputs(direction)}
        swapped = self._swapped(pair, direction)
        accounts: list[OutputAccount] = []
        for value in values:
            assert value.target is not None
            assert value.golden is not None
            mine, theirs = target.get(value.target.path), golden.get(value.golden.path)
            if value.path not in changed or mine is None or theirs is None:
                continue
            middle = theirs.reference if not pair.definition else swapped.get(mine.path)
            sizes = {array.size for array in (mine.recorded, mine.reference, theirs.recorded, theirs.reference)}
            if middle is None or sizes != {middle.size}:
                continue
            terms = split(mine.recorded, mine.reference, middle, theirs.reference, theirs.recorded)
            if terms.is_of_another_value and not _is_rounding(pair, direction, mine, theirs):
                continue
            accounts.append(self._judged(pair, direction, mine, theirs, terms))
        return accounts

    def _swapped(self, pair: _CallPair, direction: Direction) -> Mapping[str, Array]:
        """f_t of the golden run's inputs where both sides define it otherwise; empty where these do not fit."""
        if not pair.definition:
            return {}
        calls = pair.target.case.call, pair.golden.case.call
        tensors = placed(calls, pair.target.tensor_arguments(), pair.golden.tensor_arguments())
        if tensors is None:
            return {}
        call, incoming = pair.target.with_tensors(tensors), pair.golden.incoming(direction)
        return pair.target.references(direction, call, incoming, "golden inputs")

    def _judged(
        self, pair: _CallPair, direction: Direction, mine: RecordedOutput, theirs: RecordedOutput, terms: Terms
    ) -> OutputAccount:
        blamed: dict[str, str] = {}
        ratio, pattern = None, ""
        sides = (BORN_TARGET, "target", pair.target, mine), (BORN_GOLDEN, "golden run", pair.golden, theirs)
        for part, run, call, output in sides:
            if terms.parts[part].weight < Share.BLAMED or not terms.is_own(part):
                continue
            judgement = call.judge(direction, output)
            if judgement.status == "error" and (judgement.ratio is None or judgement.ratio >= Times.EXCESS):
                blamed[part] = f"arises in the {run}: {' '.join(judgement.reasons)}"
                ratio = judgement.ratio if ratio is None else ratio
                pattern = pattern or call.pattern(direction, output)
        defined = terms.parts[DEFINED]
        is_blamed = pair.is_defined_otherwise and defined.weight >= Share.BLAMED
        if is_blamed and defined.size > max(unit_roundoff(mine.recorded.dtype), unit_roundoff(theirs.recorded.dtype)):
            words = "defined differently" if pair.definition[0].name == OTHER_API else "called otherwise"
            blamed[DEFINED] = f"{words}: {listed_differences(pair.definition)}"
        sizes = {name: part.size for name, part in terms.parts.items()}
        shares = {name: part.share for name, part in terms.parts.items()}
        worst = terms.worst(next(iter(blamed))) if blamed else None
        return OutputAccount(
            mine.path, terms.size, sizes, shares, blamed=blamed, worst=worst, ratio=ratio, pattern=pattern
        )


def _as_computed(output: OutputAccount) -> OutputAccount:
    """The account where other sizes may be what values that differ made, as how many tokens an expert gets."""
    return structs.replace(output, blamed={part: text for part, text in output.blamed.items() if part != DEFINED})


def _is_rounding(pair: _CallPair, direction: Direction, mine: RecordedOutput, theirs: RecordedOutput) -> bool:
    """Whether rounding explains what both runs are off by, as where nothing but rounding is left of a sum."""
    if pair.target.judge(direction, mine).status == "error":
        return False
    return pair.golden.judge(direction, theirs).status != "error"


def _distance(key: ValueKey) -> float:
    """How far an output is off; infinitely where that is not known."""
    if key.distance is not None:
        return key.distance
    return math.inf if key.differs else 0.0
