"""One API call made ready: its records, its inputs, which gradients are wanted, and whether it can be judged.

- Whether a call of DTensors is the same operation on the parts of one rank.
- What checking a call may need in memory, from its records alone: nothing is allocated before it is known.
- Calls under automatic mixed precision, as what they were: calls with operands of another dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product, starmap
from math import inf, isfinite, isnan, prod
from typing import Any, Literal

import numpy as np

from msprobe_collector.dump_format import (
    ApiName,
    BackwardRecord,
    Dtype,
    Dump,
    DumpError,
    ForwardRecord,
    PlainValue,
    TensorValue,
    Value,
    array_dtype,
    find_dtype,
    parse_api_name,
    tensors_in,
)
from msprobe_collector.dump_format.values import Spread
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import RandomApi, random_api, random_inside, reason_uncomputable
from pytest_msprobe.cases.inputs import GradientPairing, InputSource, gradient_field, pair_gradients, some_of
from pytest_msprobe.engines.protocol import (
    Array,
    Call,
    LeafPath,
    NotJudged,
    NumpyArgument,
    Unsupported,
    is_differentiable,
    leaves,
    output_label,
    with_leaves,
)

_NO_GRADIENTS = GradientPairing({}, (), ())


@dataclass(frozen=True, slots=True)
class Case:
    """An API call with everything that running it needs.

    Attributes:
        api, forward, backward: its name and records; `backward` is None when it has none or is not asked for.
        call: name and values for an engine.
        pairing: which recorded gradient belongs to which argument.
        wanted: arguments to differentiate.
        notes: what the dump left open about the inputs.
        random: the law that the outputs follow; None for those that a benchmark can foretell.
        constructed: name of the edge case whose inputs it has, "" for the recorded call.
        is_of_parts: it may have DTensors: sizes and indices among its arguments count what all ranks hold.
    """

    api: ApiName
    forward: ForwardRecord
    backward: BackwardRecord | None
    call: Call
    pairing: GradientPairing
    wanted: tuple[LeafPath, ...]
    notes: tuple[str, ...]
    random: RandomApi | None = None
    constructed: str = ""
    is_of_parts: bool = False

    def output_dtypes(self) -> list[Dtype | None]:
        """Recorded dtype of each output that is not null, in order; None for one that is not a tensor."""
        return list(map(_dtype_of, self.output_values()))

    def gradient_label(self, path: LeafPath) -> str:
        """Place of the gradient of one argument: the recorded one's, `output.0`, where there is one."""
        entry = self.pairing.entries.get(path)
        return f"output.{entry}" if entry is not None else output_label(path)

    def output_values(self) -> list[Value]:
        """Every recorded output that is not null, in order."""
        return [value for value in _leaves(self.forward.outputs or ()) if value is not None]


def _dtype_of(value: Value) -> Dtype | None:
    return value.dtype if isinstance(value, TensorValue) else None


def read_case(dump: Dump, name: str, source: InputSource, *, with_backward: bool, max_memory_bytes: int) -> Case:
    """The API call called `name` of `dump`, ready to run.

    Raises:
        NotJudged: it cannot or need not be run, with the verdict and its reason.
    """
    api = parse_api_name(name)
    if (reason := reason_uncomputable(api, dump.framework)) is not None:
        raise NotJudged("skip", reason)
    random = random_api(api, dump.framework)
    if random is not None and random.reason:
        raise NotJudged("skip", random.reason)
    try:
        forward = dump.forward(name)
        if forward is None:
            raise NotJudged("skip", "the dump has no forward record of this call, so its arguments are unknown")
        if forward.arguments is None:
            text = (
                f"{dump.path}: {name}.forward: has no input_args (cut by data_mode or scope?); dump with data_mode all"
            )
            raise NotJudged("skip", text)
        if any(tensor.is_part for tensor in tensors_in((*forward.arguments, forward.keywords))):
            raise NotJudged("skip", "the dump holds parts of its tensors alone, as slice or request_id asked for")
        backward = dump.backward(name) if with_backward else None
        _refuse_large(api, dump.framework, forward, backward, max_memory_bytes)
        positional, keywords, notes = source.arguments(name, forward)
        attributes = source.attributes(name, forward)
    except DumpError as error:
        raise NotJudged("error", str(error), is_unreadable=True) from None
    except Unsupported as error:
        raise NotJudged("skip", str(error)) from None
    except MemoryError:
        raise NotJudged("skip", "there is not enough memory for its inputs") from None
    if reason := random_inside(api, dump.framework, positional, keywords, attributes):
        raise NotJudged("skip", reason, is_random=True)
    call = Call(api, dump.framework, positional, keywords, attributes=attributes)
    if dump.holds_parts:
        if reason := reason_not_local(forward, call):
            raise NotJudged("skip", reason)
        call = with_own_part(call, forward)
    call, note = with_cast_operands(call, forward)
    if dump.holds_real_data and source.drawn:
        notes = [f"drawn at random: {some_of(source.drawn)}"]
    notes += filter(None, [note])
    pairing = pair_gradients(api, forward, backward) if backward else _NO_GRADIENTS
    arguments = leaves(call)
    for _, value in arguments:
        _protect(value.array if isinstance(value, NumpyArgument) else value)
    wanted: tuple[LeafPath, ...] = ()
    if backward:  # of a call of whose gradients the dump holds none, every argument that can be differentiated
        wanted = tuple(pairing.entries) or tuple(
            path for path, value in arguments if hasattr(value, "__array_interface__") and is_differentiable(value)
        )
    return Case(
        api, forward, backward, call, pairing, wanted, notes=(*notes,), random=random, is_of_parts=dump.holds_parts
    )


def read_incoming(case: Case, source: InputSource) -> tuple[Array | None, ...]:
    """Incoming gradients of a case that has a backward record.

    Raises:
        NotJudged: the dump holds none, or holds gradients that fit no argument.
    """
    assert case.backward is not None  # only backward items ask
    if not case.backward.incoming or all(value is None for value in case.backward.incoming):
        raise NotJudged("skip", "the dump holds no incoming gradient of this call (cut by data_mode or scope?)")
    if case.backward.outgoing is None:
        raise NotJudged("skip", "the dump holds no gradients of this call (cut by data_mode or scope?)")
    if case.pairing.unmatched:
        entry = case.pairing.unmatched[0]
        where = f"{case.api}.backward: {gradient_field(entry)}[{entry}]"
        raise NotJudged("error", f"{where}: this gradient fits no tensor argument")
    if case.is_of_parts and (reason := reason_gradients_moved(case.backward.incoming, case.backward.outgoing)):
        raise NotJudged("skip", reason)
    if not case.wanted:
        raise NotJudged("skip", "no argument of this call can be differentiated")
    try:
        incoming = source.incoming(str(case.api), case.backward.incoming, case.forward.outputs)
    except DumpError as error:
        raise NotJudged("error", str(error), is_unreadable=True) from None
    for array in incoming:
        _protect(array)
    return incoming


def _protect(value: Any) -> None:
    """Let an array be written to no more, since every engine gets the same one and works on a copy."""
    if hasattr(value, "__array_interface__"):
        value.flags.writeable = False


def _refuse_large(
    api: ApiName, framework: str, forward: ForwardRecord, backward: BackwardRecord | None, limit: int
) -> None:
    named = {**(forward.attributes or {}), **forward.keywords}
    made = bytes_of_outputs(api, framework, forward.arguments or (), named)
    if made > limit:
        raise NotJudged(
            "skip",
            f"its arguments ask for an output of up to {_size(made)}, more than --msprobe-max-memory={_size(limit)}",
        )
    values: tuple[Value, ...] = (forward.arguments, forward.keywords, forward.outputs or ())
    if backward is not None:
        values += (backward.incoming or (), backward.outgoing or (), dict(backward.others))
    needed = needed_bytes(values)
    if needed > limit:
        largest = max((tensor for value in values for tensor in tensors_in(value)), key=lambda tensor: tensor.size)
        raise NotJudged(
            "skip",
            f"checking it needs up to {_size(needed)} (its largest tensor has shape {largest.shape}), more than "
            f"--msprobe-max-memory={_size(limit)}",
        )


def _size(count: float) -> str:
    """Bytes as people and --msprobe-max-memory write them: 16.3GB."""
    if not isfinite(count):
        return "unlimited size"
    count = int(count)
    unit = min(4, (len(str(count)) - 1) // 3)
    return f"{count / 1000**unit:.3g}{('B', 'KB', 'MB', 'GB', 'TB')[unit]}"


def _leaves(value: Value) -> list[Value]:
    if isinstance(value, dict):
        return _leaves(tuple(value.values()))
    return list(chain.from_iterable(map(_leaves, value))) if isinstance(value, tuple) else [value]


Kind = Literal["R", "S", "P"]
#: Functions that add their third argument to a product, whatever the ranks hold of it.
_WITH_BIAS = ("linear",)
_NOT_LOCAL = "not an operation on the parts of one rank: DTensor {}, and the other ranks' data is not in this dump"


def reason_not_local(forward: ForwardRecord, call: Call) -> str:
    """Why a call of DTensors cannot be judged from the parts of one rank; "" when it can, and for other calls.

    DTensor runs an operation on the local parts of its arguments. Where their placements do not allow that, it moves
    values between ranks first, which a dump of one rank does not hold. The placements of arguments and outputs tell.
    Source: torch.distributed.tensor 2.13, `placement_types.py` (a replicated value becomes a partial sum by division).
    """
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


#: Per element: float64 on both sides, and a gradient.
_BYTES_BESIDE = 3 * 8
#: A tensor of no recorded dtype.
_BYTES = 8


def needed_bytes(values: Value) -> int:
    """Memory in bytes that checking tensors like `values` takes at most: a copy, float64 twice, and a gradient."""
    total = 0
    for tensor in tensors_in(values):
        item_bytes = tensor.dtype.item_bytes if tensor.dtype else _BYTES
        total += prod(tensor.shape) * (item_bytes + _BYTES_BESIDE)
    return total


def bytes_of_outputs(api: ApiName, framework: str, arguments: Sequence[Value], keywords: dict[str, Value]) -> float:
    """Memory in bytes that the outputs of a call take at most where its arguments decide; 0 where its tensors do."""
    fact = facts("output_sizes").of(api, framework)
    if fact is None:
        return 0
    return _elements(fact.text, (*arguments, *keywords.values())) * (_BYTES + _BYTES_BESIDE)


def _whole(numbers: Iterable[float]) -> list[int]:
    return [abs(number) for number in numbers if isinstance(number, int)]


def _elements(rule: str, values: tuple[Value, ...]) -> float:
    numbers = [*_numbers(values)]
    whole = _whole(numbers)
    first = next((value for value in values if isinstance(value, tuple)), None)
    largest = max(tensors_in(values), key=lambda tensor: tensor.size, default=None)
    if rule == "shape":
        return prod(whole if first is None else _whole(_numbers(first)))
    if rule == "steps":
        return whole[-1] if whole else 0
    if rule == "square":
        return prod(whole[:2]) if len(whole) > 1 else prod(whole) ** 2
    if rule == "times":
        # A number may also be a dimension: 0 is not a factor.
        factor = prod(max(1, number) for number in whole)
        return factor if largest is None else largest.size * factor
    if rule == "padded":
        return _padded(largest, [*map(abs, _numbers(first or ()))])
    if not numbers:
        return 0
    start, end, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    return abs(end - start) / abs(step) if step else inf


def _padded(tensor: TensorValue | None, pads: Sequence[float]) -> float:
    if tensor is None:
        return 0
    sizes: list[float] = list(tensor.shape[::-1])
    for place, pad in enumerate(pads):
        if place // 2 < len(sizes):
            sizes[place // 2] += pad
    return prod(sizes)


def _numbers(value: Value) -> Iterator[float]:
    """The numbers in a value, NaN and bool left out."""
    if isinstance(value, tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, PlainValue):
        number = value.value
        if isinstance(number, (int, float)) and not isinstance(number, bool) and not isnan(number):
            yield number


_NARROW = ("Float16", "BFloat16")
#: NumPy dtypes of operands that are cast.
_CAST = ("float16", "bfloat16", "float32")


def with_cast_operands(call: Call, forward: ForwardRecord) -> tuple[Call, str]:
    """(`call` with its operands as they were cast inside, a note that says so); (`call`, "") where none was.

    PyTorch's autocast, mindspore.amp and Cell.to_float cast operands inside a call, so that a record shows float32
    arguments of a product that was computed in bfloat16. With the operands cast likewise, the call is an ordinary one:
    for the benchmark, and for a device that runs it without autocast.
    """
    dtype = _computed_in(call, forward)
    if dtype is None or (target := array_dtype(dtype)) is None:
        return call, ""
    casts = []

    def cast(path: LeafPath, value: Any) -> Any:
        is_cast = hasattr(value, "__array_interface__") and str(value.dtype) in _CAST
        if not is_cast or value.dtype == target:
            return value
        casts.append(path)
        with np.errstate(over="ignore"):  # float16 overflows on the device as well
            return value.astype(target)

    call = with_leaves(call, cast)
    note = f"mixed precision: computed in {dtype.name}" if casts else ""
    return call, note


def _computed_in(call: Call, forward: ForwardRecord) -> Dtype | None:
    """The dtype to which operands were cast inside the call; None where they were not."""
    is_known = facts("mixed_precision").of(call.api, call.framework) is not None
    if not is_known and forward.autocast is None:
        return None
    outputs = _float_dtypes(forward.outputs or ())
    narrow = [dtype for dtype in outputs if dtype.name in _NARROW]
    if is_known and len(narrow) != 1:
        return None
    inputs, wide = _float_dtypes((forward.arguments or (), forward.keywords)), find_dtype("Float32")
    if is_known:
        return narrow[0] if wide in inputs else None
    # Of other functions autocast gives float32 operands to some; which, differs between devices.
    return wide if outputs == {wide} and inputs == {forward.autocast} else None


def _float_dtypes(values: Value) -> set[Dtype]:
    return {tensor.dtype for tensor in tensors_in(values) if tensor.dtype is not None and tensor.dtype.kind == "float"}
