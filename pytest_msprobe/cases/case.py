"""One API call made ready: its records, its inputs, and which gradients are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from msprobe_collector.dump_format import (
    ApiName,
    BackwardRecord,
    Dtype,
    Dump,
    DumpError,
    ForwardRecord,
    TensorValue,
    Value,
    parse_api_name,
    tensors_in,
)
from pytest_msprobe.apis.not_judged import reason_not_judged
from pytest_msprobe.cases.inputs import InputSource
from pytest_msprobe.cases.mixed_precision import with_cast_operands
from pytest_msprobe.cases.needed_memory import bytes_of_outputs, needed_bytes
from pytest_msprobe.cases.not_judged import NotJudged
from pytest_msprobe.engines.gradient_pairing import GradientPairing, gradient_field, pair_gradients
from pytest_msprobe.engines.precision import is_differentiable
from pytest_msprobe.engines.protocol import Array, Call, LeafPath, NumpyArgument, Unsupported, map_leaves

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
        constructed: name of the edge case whose inputs it has, "" for the recorded call.
    """

    api: ApiName
    forward: ForwardRecord
    backward: BackwardRecord | None
    call: Call
    pairing: GradientPairing
    wanted: tuple[LeafPath, ...]
    notes: tuple[str, ...]
    constructed: str = ""

    def output_dtypes(self) -> list[Dtype | None]:
        """Recorded dtype of each output that is not null, in order; None for one that is not a tensor."""
        return [value.dtype if isinstance(value, TensorValue) else None for value in self.output_values()]

    def gradient_label(self, path: LeafPath) -> str:
        """Place of the gradient of one argument: the recorded one's, `output.0`, where there is one."""
        entry = self.pairing.entries.get(path)
        return f"output.{entry}" if entry is not None else ".".join(("output", *map(str, path)))

    def output_values(self) -> list[Value]:
        """Every recorded output that is not null, in order."""
        return [value for value in _leaves(self.forward.outputs or ()) if value is not None]


def read_case(dump: Dump, name: str, source: InputSource, *, with_backward: bool, max_memory_bytes: int) -> Case:
    """The API call called `name` of `dump`, ready to run.

    Raises:
        NotJudged: it cannot or need not be run, with the verdict and its reason.
    """
    api = parse_api_name(name)
    reason = reason_not_judged(api, dump.framework)
    if reason is not None:
        raise NotJudged("skip", reason)
    try:
        forward = _forward(dump, name)
        backward = dump.backward(name) if with_backward else None
        _refuse_large(api, dump.framework, forward, backward, max_memory_bytes)
        positional, keywords, notes = source.arguments(name, forward)
        attributes = source.attributes(name, forward)
    except DumpError as error:
        raise NotJudged("error", str(error)) from None
    except Unsupported as error:
        raise NotJudged("skip", str(error)) from None
    except MemoryError:
        raise NotJudged("skip", "there is not enough memory for its inputs") from None
    call = Call(api, dump.framework, positional, keywords, attributes=attributes)
    call, note = with_cast_operands(call, forward)
    notes += filter(None, [note])
    map_leaves(call, _protected)
    pairing = pair_gradients(api, forward, backward) if backward else _NO_GRADIENTS
    wanted = (tuple(pairing.entries) or _all_leaves(call)) if backward else ()
    return Case(api, forward, backward, call, pairing, wanted, tuple(notes))


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
    if not case.wanted:
        raise NotJudged("skip", "no argument of this call can be differentiated")
    try:
        return tuple(_protected((), value) for value in source.incoming(str(case.api), case.backward.incoming))
    except DumpError as error:
        raise NotJudged("error", str(error)) from None


def _protected(_: LeafPath, value: Any) -> Any:
    """`value`; an array can be written to no more, since every engine gets the same one and works on a copy."""
    array = value.array if isinstance(value, NumpyArgument) else value
    if hasattr(array, "__array_interface__"):
        array.flags.writeable = False
    return value


def _forward(dump: Dump, name: str) -> ForwardRecord:
    forward = dump.forward(name)
    if forward is None:
        raise NotJudged("skip", "the dump has no forward record of this call, so its arguments are unknown")
    if forward.arguments is None:
        raise NotJudged(
            "skip",
            f"{dump.path}: {name}.forward: has no input_args (cut by data_mode or scope?); dump with data_mode all",
        )
    return forward


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


def _all_leaves(call: Call) -> tuple[LeafPath, ...]:
    """Every argument that can be differentiated: for calls of whose gradients the dump holds none."""
    found: list[LeafPath] = []

    def note(path: LeafPath, value: Any) -> None:
        if hasattr(value, "__array_interface__") and is_differentiable(value):
            found.append(path)

    map_leaves(call, note)
    return tuple(found)


def _leaves(value: Value) -> list[Value]:
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]
