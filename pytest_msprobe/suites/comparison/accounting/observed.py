"""What can be said of an operation whose tensors the dumps do not hold: which of its values differ, and by how much.

Nothing is computed again, so nothing can be called wrong: an operation whose inputs agree and whose output does not is
the first that differs, for whatever reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.numerics.expected import Times
from pytest_msprobe.suites.comparison.accounting.account import (
    Account,
    Basis,
    Kind,
    OutputAccount,
    ValueKey,
    account_of,
    any_beyond,
    any_differs,
    dtype_change,
    inputs_of,
    largest_distance,
    listed_differences,
    numbers_given,
    numbers_taken,
    other_arguments,
    outputs_of,
    value_key,
)
from pytest_msprobe.suites.comparison.operations import OperationComparison
from pytest_msprobe.suites.comparison.values import DistanceLimits, ValueComparison, farthest_of, is_whole

#: The part of a difference that is the first one, beside those of `terms.PARTS`.
FIRST = "first"
#: The same where the arguments show why.
ARGUMENTS = "arguments"
#: By the first letter of keys, what proves the least first.
_BASES: dict[str, Basis] = {"s": "statistics", "k": "sketches", "v": "values", "m": "checksums", "f": "fingerprints"}


def observed(compared: OperationComparison, limits: DistanceLimits, *, is_alone: bool = False) -> Account:
    """The account of an operation by its fingerprints, checksums, sketches and statistics.

    A layer `is_alone` where the dump holds none of the calls in it.
    """
    tensors = list(filter(attrgetter("is_tensor"), compared.values))
    keys = [_key(value, limits) for value in tensors]
    if compared.partner is None:
        return account_of(compared, "unmatched", keys, basis=_basis(keys))
    kind, fields = _kind(keys), dict[str, Any]()
    if compared.operation.is_cell and not is_alone:
        kind = "contained"
    elif is_alone and kind in ("first", "carried"):
        fields = {"is_given": kind == "carried", "reason": "the dump holds none of the calls of this layer"}
        kind = "unaccounted"
    differing = [value for value, key in zip(tensors, keys) if key.differs]
    is_noise = all(value.tolerance is not None and value.tolerance.basis != "dtype" for value in differing)
    outputs = _outputs(compared, tensors, keys, kind)
    fields["dtype"], fields["is_cast"] = dtype_change(compared.values)
    definition = () if compared.operation.is_cell else other_arguments(compared)
    takes = numbers_taken(compared) if definition else ()
    fields |= {"definition": definition, "gives": numbers_given(compared), "takes": takes, "is_noise": is_noise}
    return account_of(compared, kind, keys, outputs=outputs, basis=_basis(keys), **fields)


def _kind(keys: Sequence[ValueKey]) -> Kind:
    outputs = outputs_of(keys)
    if not any_differs(outputs):
        return "equal"
    if not any_beyond(outputs):
        return "within"
    inputs = [key for key in inputs_of(keys) if key.target and key.golden]
    nearest = farthest_of([key.distance for key in outputs if key.is_beyond])
    is_first = not any_beyond(inputs) and nearest > Times.GROWTH * largest_distance(inputs)
    return "first" if is_first else "carried"


def _outputs(
    compared: OperationComparison, tensors: Sequence[ValueComparison], keys: Sequence[ValueKey], kind: Kind
) -> tuple[OutputAccount, ...]:
    """The output that is farthest off, with the growth of the distance."""
    pairs = [(value, key) for value, key in zip(tensors, keys) if key.is_output and key.differs]
    if not pairs:
        return ()
    value, key = max(pairs, key=lambda pair: (pair[1].is_beyond, pair[1].distance or 0.0))
    inputs = inputs_of(keys)
    # Of equal inputs other arguments make any difference.
    is_equal = kind == "within" and not any_differs(inputs)
    is_first = kind == "first" or (is_equal and bool(other_arguments(compared)))
    after, growth = compared.growth
    blamed = _first(compared, value, inputs) if is_first else {}
    return (OutputAccount(key.path, after, {}, {}, growth=growth or None, blamed=blamed),)


def _first(compared: OperationComparison, value: ValueComparison, keys: Sequence[ValueKey]) -> dict[str, str]:
    """Why this is the first that differs, as far as that is known; `keys` are those of its inputs."""
    inputs = [key for key in keys if key.target and key.golden]
    kinds = {key.target[:1] for key in inputs}
    state = "its inputs are equal"
    if not inputs:
        state = "it has no tensor among its inputs"
    elif any_differs(inputs):
        state = "its inputs agree within their tolerances"
    elif "s" in kinds:
        state = "its inputs have equal statistics"
    elif "k" in kinds:
        state = "its inputs have equal sketches"
    message = value.reasons[0].rstrip(".") if value.reasons else f"by {value.distance or 0.0:.3g}"
    if value.tolerance is not None:
        message += f" (tolerance {value.tolerance.limit:.3g}, noise run {value.tolerance.noise:.3g})"
    if others := other_arguments(compared):
        called = f"called otherwise: {listed_differences(others)}"
        return {ARGUMENTS: f"{called}; {state}, and {value.path} differs: {message}"}
    return {FIRST: f"{state}, and {value.path} differs: {message}"}


def _key(value: ValueComparison, limits: DistanceLimits) -> ValueKey:
    if value.figures is not None:  # both were compared whole: keys are equal where they are
        target, golden = f"v{_content(value.target, 's')}", f"v{_content(value.golden, 's')}"
        contents = (target, target) if value.distance == 0 else (target, f"{golden} differs")
    elif value.contents is not None and "k" in (value.contents[0][:1], value.contents[1][:1]):
        contents = value.contents
    else:
        contents = _contents(value.target, value.golden)
    # Values of two dtypes are no further apart than their elements are.
    distance = value.distance if value.estimate is None else value.estimate.distance
    return value_key(value, contents, distance, limits, is_integer=is_whole(value.leaf))


def _contents(target: Leaf | None, golden: Leaf | None) -> tuple[str, str]:
    """Keys of the content of both sides, of the best kind that both have."""
    sides = [leaf for leaf in (target, golden) if leaf is not None and leaf.tensor is not None]
    kind = "s"
    if all(map(attrgetter("fingerprint"), sides)):
        kind = "f"
    elif all(map(attrgetter("md5"), sides)):
        kind = "m"
    return _content(target, kind), _content(golden, kind)


def _content(leaf: Leaf | None, kind: str) -> str:
    if leaf is None or leaf.tensor is None:
        return ""
    if kind != "s":
        return f"{kind}{leaf.fingerprint or leaf.md5}"
    if {*leaf.statistics} == {None}:
        return ""
    text = f"{leaf.shape}{leaf.statistics}".encode()
    return f"s{hashlib.blake2b(text, digest_size=8).hexdigest()}"


def _basis(keys: Sequence[ValueKey]) -> Basis:
    """The weakest kind of key: what all of them prove."""
    kinds = {key[:1] for value in keys for key in (value.target, value.golden)}
    return next((basis for kind, basis in _BASES.items() if kind in kinds), "none")
