"""What a failing API call leaves behind, in plain arrays and names: the content of error data and of reproducers.

From a failing check to its evidence: engine values become plain ones, and the writers get them.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, Union

from msprobe_collector.dump_format import ApiName, Direction, Dtype, Dump, Frame, tensor_positions, tensors_in
from pytest_msprobe.apis.fact_table import writes_in_place
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.edge_cases import EDGE_CASES
from pytest_msprobe.engines.protocol import Array, Call, LeafPath, NumpyArgument, Output, map_attributes, map_leaves
from pytest_msprobe.engines.torch_map import Refusal, lookup
from pytest_msprobe.numerics import round_once
from pytest_msprobe.verdicts import Verdict

#: ("input", 0), ("kwargs", "weight"); for outputs without the first word.
ValuePath: TypeAlias = tuple[Union[str, int], ...]
Leaves: TypeAlias = tuple[tuple[ValuePath, Any], ...]

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")
_MOST_STEM_CHARACTERS = 180


@dataclass(frozen=True, slots=True)
class NumpyValue:
    """An argument that is a NumPy array and not a tensor."""

    array: Array


@dataclass(frozen=True, slots=True)
class Gradients:
    """The backward of a failing call.

    Attributes:
        incoming: gradient of the i-th top-level output tensor; None where there is none.
        wanted: the arguments that were differentiated.
        entries: for each of them its index in a backward record's `output`, or its path in `other_gradients`.
        tested, bench: their gradients; None when that side raised.
    """

    incoming: tuple[Array | None, ...]
    wanted: tuple[ValuePath, ...]
    entries: tuple[int | str, ...]
    tested: tuple[Array | None, ...] | None
    bench: tuple[Array | None, ...] | None

    def label(self, position: int) -> str:
        """Name of one gradient as in the details table, without `output.`."""
        return str(self.entries[position])


@dataclass(frozen=True, slots=True)
class Evidence:
    """A failing API call: what it got, what came out, and what should have.

    Attributes:
        dump: path of the dump.json; `framework`: who ran the training.
        api: name of the call.
        arguments, keywords: arrays, `NumpyValue`, `Dtype`, plain values, slices, tuples and dicts of them.
        attributes: of a Primitive, likewise; None where the dump does not say.
        tested, bench: forward outputs, the benchmark's in float64; None when that side raised.
        gradients: of a failing backward.
        frames: call stack, innermost first.
        called_from: the frame of it that is the user's own.
        device, bench_name: who was tested and against what.
        verdicts: what is said about each direction.
        inputs: where the input values come from, for people.
        edge_case: name of the edge case that the call is, "" for a recorded one.
        is_strided: whether the device got tensors as transposed views.
        is_in_place: whether the call writes to its first argument.
        rounded: the benchmark value as a perfect device would return it, given (benchmark, tested).
        torch_text: the PyTorch call as text for the texts of arguments and keywords; None where there is no plain one.
    """

    dump: str
    framework: str
    api: ApiName
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    attributes: Mapping[str, Any] | None
    tested: Leaves | None
    bench: Leaves | None
    gradients: Gradients | None
    frames: tuple[Frame, ...]
    called_from: Frame | None
    device: str
    bench_name: str
    verdicts: dict[Direction, str]
    inputs: str
    edge_case: str
    is_strided: bool
    is_in_place: bool
    rounded: Callable[[Any, Any], Any]
    torch_text: Callable[[Sequence[str], Mapping[str, str]], str | None]


class EvidenceWriter(Protocol):
    """Something that keeps evidence on disk."""

    def save(self, evidence: Evidence) -> str:
        """Keep it; one line on where, or on why not.

        Raises:
            OSError: it could not be written.
        """


def file_stem(name: str) -> str:
    """`name` as part of a file name: unusual characters become %XX, and a long one ends in a digest of the whole."""
    stem = _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in _bytes(match.group())), name)
    if len(stem) <= _MOST_STEM_CHARACTERS:
        return stem
    return f"{stem[: _MOST_STEM_CHARACTERS - 17]}.{hashlib.sha256(_bytes(name)).hexdigest()[:16]}"


def dump_folder(dump: Path, dumps: Sequence[Path], edge_case: str = "") -> Path:
    """Where what belongs to `dump` stands among that of all `dumps`: `.` for a single one, else as the CSVs name it.

    What belongs to an edge case stands in a folder `edge_nan` there, since its record has the name of the recorded one.
    """
    if edge_case:
        taken = {dump_folder(other, dumps) for other in dumps}
        found = dump_folder(dump, dumps) / f"edge_{edge_case}"
        while found in taken:  # error data of edge cases, checked with edge cases
            found = found.with_name(f"{found.name}_2")
        return found
    if len(set(dumps)) < 2 or dump not in dumps:
        return Path()
    common = os.path.commonpath([path.parent for path in dumps])
    folder = dump.parent.relative_to(common)
    return folder if dump.name == "dump.json" else folder / file_stem(dump.stem)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Sides:
    """What both sides computed; None where one raised.

    Attributes:
        tested, bench: forward outputs.
        incoming: gradients that the backward got; None when this is about the forward.
        tested_gradients, bench_gradients: in the order of `Case.wanted`.
    """

    tested: tuple[Output, ...] | None = None
    bench: tuple[Output, ...] | None = None
    incoming: tuple[Array | None, ...] | None = None
    tested_gradients: tuple[Array | None, ...] | None = None
    bench_gradients: tuple[Array | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class FailureKeeper:
    """Keeps what failing calls of a run computed.

    Attributes:
        writers: where it goes.
        seed: of random inputs.
    """

    writers: tuple[EvidenceWriter, ...]
    seed: int

    def keep(self, dump: Dump, case: Case, sides: Sides, verdicts: Mapping[Direction, Verdict]) -> tuple[str, ...]:
        """What each writer says about the evidence of a failing call; never raises for a disk that fails."""
        evidence = self._evidence(dump, case, sides, verdicts)
        lines = []
        for writer in self.writers:
            try:
                lines.append(writer.save(evidence))
            except OSError as error:
                lines.append(f"{type(writer).__name__}: not saved: {error.strerror or error}")
        return tuple(lines)

    def _evidence(self, dump: Dump, case: Case, sides: Sides, verdicts: Mapping[Direction, Verdict]) -> Evidence:
        arguments, keywords = map_leaves(case.call, lambda _, value: _plain(value))
        record = f"{case.api}.forward"
        last = list(verdicts.values())[-1]
        return Evidence(
            dump=str(dump.path),
            framework=dump.framework,
            api=case.api,
            arguments=tuple(arguments),
            keywords=keywords,
            attributes=map_attributes(case.call, lambda _, value: _plain(value)),
            tested=_leaves(sides.tested),
            bench=_leaves(sides.bench),
            gradients=_gradients(case, sides) if sides.incoming is not None else None,
            frames=dump.stacks.frames(record),
            called_from=dump.stacks.user_frame(record),
            device=last.device,
            bench_name=last.bench,
            verdicts={direction: _verdict(finding) for direction, finding in verdicts.items()},
            inputs=self._origin(case),
            edge_case=case.constructed,
            is_strided=case.call.is_strided,
            is_in_place=writes_in_place(case.api),
            rounded=_rounded,
            torch_text=lambda texts, named: torch_text(case.call, texts, named),
        )

    def _origin(self, case: Case) -> str:
        if case.constructed:
            return f"edge case {case.constructed} of {self._recorded_origin(case)}: {EDGE_CASES[case.constructed]}"
        return self._recorded_origin(case)

    def _recorded_origin(self, case: Case) -> str:
        tensors = [*tensors_in(case.forward.arguments), *tensors_in(case.forward.keywords)]
        if all(tensor.data_name is not None for tensor in tensors):
            return "recorded in the training run"
        return f"random in the recorded range, seed {self.seed}"


def torch_text(call: Call, texts: Sequence[str], named: Mapping[str, str]) -> str | None:
    """The PyTorch call of `call` over texts of its arguments, or None when it takes more than one plain expression."""
    binding = lookup(call.api.type, call.api.table_name, call.framework)
    has_dtypes: list[bool] = []
    map_leaves(call, lambda _, value: has_dtypes.append(isinstance(value, (Dtype, NumpyArgument))))
    if isinstance(binding, Refusal) or any(has_dtypes):
        return None
    if binding.target.startswith("references."):
        return None
    if not binding.forms:
        return f"{binding.target}({', '.join([*texts, *(f'{key}={text}' for key, text in named.items())])})"
    for form in binding.forms:
        try:
            form.bind(call.arguments, call.keywords, {}, call.attributes)
            known = {name: text for name, text in named.items() if name in form.signature.parameters}
            bound = form.signature.bind(*texts, **known)
        except (TypeError, KeyError):
            continue
        expressions = {name: text for name, text in bound.arguments.items() if isinstance(text, str)}
        if len(expressions) < len(bound.arguments) or any(name.startswith("adapters") for name in form.targets()):
            return None
        return ast.unparse(
            _Filled(expressions, form.signature.parameters).visit(ast.parse(ast.unparse(form.expression)))
        )
    return None


class _Filled(ast.NodeTransformer):
    """Puts the texts of arguments, or defaults, where a table's expression names parameters."""

    def __init__(self, texts: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        self._texts = texts
        self._parameters = parameters

    def visit_Name(self, node: ast.Name) -> ast.expr:  # the name that ast asks for
        if node.id in self._texts:
            return ast.parse(self._texts[node.id], mode="eval").body
        parameter = self._parameters.get(node.id)
        default: ast.expr = node if parameter is None else parameter.default
        return default


def _plain(value: Any) -> Any:
    return NumpyValue(value.array) if isinstance(value, NumpyArgument) else value


def _leaves(outputs: Sequence[Output] | None) -> Leaves | None:
    return None if outputs is None else tuple((output.path, output.value) for output in outputs)


def _gradients(case: Case, sides: Sides) -> Gradients:
    positions = tensor_positions(case.forward.arguments or ())
    by_position: dict[LeafPath, int | str] = {("input", position): index for index, position in enumerate(positions)}
    entries = tuple(
        case.pairing.entries.get(path, by_position.get(path, ".".join(map(str, path)))) for path in case.wanted
    )
    assert sides.incoming is not None  # the caller asks only then
    return Gradients(sides.incoming, case.wanted, entries, sides.tested_gradients, sides.bench_gradients)


def _verdict(finding: Verdict) -> str:
    if finding.status == "pass":
        return "pass"
    outputs = [f"{output.label}: {output.message}" for output in finding.outputs if output.message]
    return "; ".join(filter(None, [finding.message, *outputs]))


def _rounded(bench: Any, tested: Any) -> Any:
    if hasattr(bench, "__array_interface__") and hasattr(tested, "__array_interface__"):
        return round_once(bench, tested.dtype)
    return bench
