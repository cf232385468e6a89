"""Whether a call of DTensors is the same operation on the parts that one rank holds, and what it does where not.

DTensor runs an operation on the local parts of its arguments. Where their placements do not allow that it moves values
between ranks first, which a dump of one rank does not hold. The placements of arguments and outputs tell.

Source: torch.distributed.tensor 2.13, `placement_types.py` (a replicated value becomes a partial sum by division).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product, starmap
from typing import Any, Literal

from msprobe_collector.dump_format import ForwardRecord, TensorValue, Value, tensors_in
from msprobe_collector.dump_format.values import Spread
from pytest_msprobe.engines.protocol import Call

Kind = Literal["R", "S", "P"]
#: Functions that add their third argument to a product, whatever the ranks hold of it.
_WITH_BIAS = ("linear",)
_NOT_LOCAL = "not an operation on the parts of one rank: DTensor {}, and the other ranks' data is not in this dump"


def reason_not_local(forward: ForwardRecord, call: Call) -> str:
    """Why a call of DTensors cannot be judged from the parts of one rank; "" when it can, and for other calls."""
    inputs, outputs = _of((forward.arguments or (), forward.keywords)), _of(forward.outputs or ())
    if not inputs or not outputs:
        return ""
    if len({spread.mesh for spread in (*inputs, *outputs)}) > 1:
        return _NOT_LOCAL.format("combines two meshes")
    positional = _of(forward.arguments or ())
    if _bias(call) is not None and len(positional) > 2:
        inputs = [*positional[:2], *positional[3:]]
    for dimension in range(len(outputs[0].mesh)):
        reason = _moves(_kinds(inputs, dimension), _kinds(outputs, dimension))
        if reason:
            return _NOT_LOCAL.format(reason)
    parts, results = _parts((*(forward.arguments or ()), *forward.keywords.values())), _parts(forward.outputs or ())
    if any(starmap(_is_cut, product(parts, results))):
        return _NOT_LOCAL.format("cuts or moves an argument")
    return ""


def is_of_parts(forward: ForwardRecord) -> bool:
    """Whether a call has DTensors, so that sizes and indices among its arguments count what all ranks hold."""
    return bool(_of((forward.arguments or (), forward.keywords)))


def reason_gradients_moved(incoming: Value, outgoing: Value) -> str:
    """Why the gradients of a call that is local cannot be judged: they were reduced; "" when they can."""
    arrived, sent = _of(incoming), _of(outgoing)
    if not arrived or not sent or len({spread.mesh for spread in (*arrived, *sent)}) > 1:
        return ""
    for dimension in range(len(sent[0].mesh)):
        if {*_kinds(arrived, dimension)} != {"R"} and "R" in _kinds(sent, dimension):
            return _NOT_LOCAL.format("has reduced a gradient already")
    return ""


def with_own_part(call: Call, forward: ForwardRecord) -> Call:
    """`call` with the bias that this rank adds: a share of a whole one where ranks add up their outputs."""
    bias = _bias(call)
    outputs = _of(forward.outputs or ())
    values = [value for value in forward.arguments or () if isinstance(value, TensorValue)]
    spread = values[2].spread if bias is not None and len(values) > 2 else None
    if spread is None or not outputs or outputs[0].mesh != spread.mesh:
        return call
    shares = 1
    for dimension, length in enumerate(spread.mesh):
        if _kind(spread, dimension) == "R" and outputs[0].placements[dimension] == "P(sum)":
            shares *= length
    if shares == 1:
        return call
    arguments = (*call.arguments[:2], bias / bias.dtype.type(shares), *call.arguments[3:])
    return replace(call, arguments=arguments)


def _bias(call: Call) -> Any:
    is_known = call.api.short in _WITH_BIAS and len(call.arguments) > 2
    return call.arguments[2] if is_known and hasattr(call.arguments[2], "__array_interface__") else None


def _of(values: Value) -> list[Spread]:
    return [tensor.spread for tensor in tensors_in(values) if tensor.spread is not None]


def _kind(spread: Spread, dimension: int) -> Kind:
    text = spread.placements[dimension].lstrip("_")
    if text.startswith("R"):
        return "R"
    return "S" if text.startswith("S") else "P"


def _kinds(spreads: Sequence[Spread], dimension: int) -> list[Kind]:
    return [_kind(spread, dimension) for spread in spreads]


def _moves(before: Sequence[Kind], after: Sequence[Kind]) -> str:
    """What DTensor does between these placements along one dimension of the mesh; "" when nothing."""
    if "P" in before:
        if set(before) != {"P"} or set(after) != {"P"}:
            return "adds up the partial sums of the ranks inside"
    elif "P" in after and "R" in before:
        return "divides a whole value among the ranks inside"
    elif "R" in after and "S" in before:
        return "gathers an argument inside"
    elif "S" in after and "S" not in before:
        return "cuts an argument that each rank has whole"
    return ""


def _parts(values: Sequence[Value]) -> list[tuple[TensorValue, Spread]]:
    """Those of `values` that are DTensors themselves: of lists nobody knows here which belongs to which."""
    tensors = (value for value in values if isinstance(value, TensorValue))
    return [(tensor, tensor.spread) for tensor in tensors if tensor.spread is not None]


def _is_cut(argument: tuple[TensorValue, Spread], output: tuple[TensorValue, Spread]) -> bool:
    """Whether an argument is whole where the output, of as many dimensions, is a part, or is cut along another one."""
    (before, first), (after, second) = argument, output
    if len(before.shape) != len(after.shape):
        return False
    if first.shape == second.shape and before.shape != after.shape:
        return True
    lengths = zip(before.shape, after.shape, second.shape)
    return any(length != whole and local == whole for local, length, whole in lengths)
