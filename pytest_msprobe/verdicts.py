"""What judging one record found: `Verdict`, and with its place `VerdictRow`.

A row is the one value that travels from an item to every report, also across processes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec

from msprobe_collector.dump_format import DIRECTIONS, Direction

Status = Literal["pass", "error", "skip"]
#: Of a value that fails: its numbers; NaN or Inf on one side only; dtype, shape or whether it has a gradient; bits of
#: which it is not known how far they are apart; an argument that is no tensor.
Difference = Literal["", "size", "nonfinite", "form", "bits", "argument"]
_Sent = TypeVar("_Sent", bound="Wire")
#: The word of `OutputRow.rounding` for a failure that is none of the operation's.
EXPLAINED = "explained by rounding"
#: Property: the format to which a product may have rounded its operands by default; `none` where it has not.
DEFAULT_OPERANDS = "default_operands"
#: How the benchmark of random outputs is called, which is no computation.
LAW = "law: "
#: Property of a row whose failure was expected by an xfail mark, with the mark's reason.
EXPECTED = "expected"
#: Property of a skipped row that leaves nothing open, with why: there is nothing that it could judge.
MOOT = "nothing to judge"
#: Property of a skipped row whose call draws random numbers inside.
RANDOM = "random"
#: Property of a row that failed since its record cannot be read, with the file.
UNREADABLE = "unreadable"
#: Figures that say how bad an output is: error over tolerance, then what suites without tolerances have.
BADNESS = ("ratio", "distance", "similarity", "max_abs")


class Wire:
    """Base of the values that cross a process: dataclasses and msgspec structures."""

    __slots__ = ()
    #: Whether a text is never read as a number.
    is_strict: ClassVar[bool] = True

    def to_wire(self) -> dict[str, Any]:
        """The value in builtin types, which is all that may cross a process."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls: type[_Sent], wire: Mapping[str, Any]) -> _Sent:
        """The inverse of `to_wire`.

        Raises:
            msgspec.ValidationError: `wire` is no such value.
        """
        return msgspec.convert(wire, cls, strict=cls.is_strict)


_WORDS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


class FigureWire(Wire):
    """Base of values whose figures may be NaN or infinite, for which JSON has no word: they travel as text."""

    __slots__ = ()
    is_strict: ClassVar[bool] = False

    def to_wire(self) -> dict[str, Any]:
        """The value in builtin types, "nan", "inf" or "-inf" for such a figure."""
        wire = super().to_wire()
        text = json.dumps(wire)
        if "NaN" in text or "Infinity" in text:
            wire = json.loads(text, parse_constant=_WORDS.__getitem__)
        return wire


@dataclass(frozen=True, slots=True)
class OutputRow:
    """How one output, gradient or other value of a record was judged.

    Attributes:
        label: its place, as in the details table: `output.0`.
        bench_dtype, tested_dtype: names as in dumps (`Float64`), or the Python type of a plain value; "" if unknown.
        shape: of the benchmark's output.
        status: `pass` or `error`; `skip` where the standard cannot judge it.
        message: one line on what is wrong, "" for a pass.
        standard: name of the rule that judged it, "" for the default one.
        figures: by name (see `Suite.figures`); None where a figure has no meaning for this output. `ratio` is how many
            times its tolerance the error is, at most 1 for a pass.
        rounding: of a failed output, `explained by rounding` or not, and how far; "" otherwise.
        pattern: of a failed output, what its wrong elements have in common, in a short phrase; "" otherwise.
        pattern_kind, pattern_figure: the same as data: `factor` and 1.01 of `1.01 x too large`; see `numerics.Pattern`.
        picture: of a failed output, where and how much it is off, see `evidence.pictures`; None without one.
        difference: of a failed output, which kind of difference it is; "" where that was not looked at.
    """

    label: str
    bench_dtype: str
    tested_dtype: str
    shape: tuple[int, ...]
    status: Status
    message: str = ""
    standard: str = ""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    rounding: str = ""
    pattern: str = ""
    pattern_kind: str = ""
    pattern_figure: float | None = None
    picture: Mapping[str, Any] | None = None
    difference: Difference = ""

    @property
    def cosine(self) -> float | None:
        """Cosine of the tested and the benchmark output; None where it was not measured."""
        return self.figures.get("cosine")

    @property
    def max_abs(self) -> float | None:
        """Maximum absolute error; None where it was not measured."""
        return self.figures.get("max_abs")

    @property
    def max_rel(self) -> float | None:
        """Maximum relative error; None where it was not measured."""
        return self.figures.get("max_rel")

    @property
    def max_ulp(self) -> float | None:
        """Maximum error in units in the last place of the tested dtype; None where it was not measured."""
        return self.figures.get("max_ulp")

    @property
    def ratio(self) -> float | None:
        """How many times its tolerance the error is, at most 1 for a pass; None where no tolerance applies."""
        return self.figures.get("ratio")

    @property
    def measured(self) -> dict[str, float]:
        """The figures that have a meaning for this output."""
        return {name: value for name, value in self.figures.items() if value is not None}

    @property
    def badness(self) -> tuple[bool, float]:
        """Sort key: a failed output above all that pass, then by the first figure of `BADNESS` that it has.

        An error without a figure is the largest.
        """
        for name in BADNESS:
            value = self.figures.get(name)
            if value is not None and not math.isnan(value):
                return self.status == "error", -value if name == "similarity" else value
            if value is not None:
                break
        return self.status == "error", math.inf


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one record, with what a reader needs to act on it.

    Attributes:
        status: `pass`, `error` or `skip`.
        message: one line on a skip, or on an error that no output explains; a note on a pass.
        outputs: one row per judged value.
        explanation: of an error, over several lines: what differs and where.
        device, bench: what was tested and against what; "" when it did not come to that.
        attachment: what the suite's own report needs of this record, in builtin types; None for nothing.
        properties: further facts for JUnit, as (name, value).
        excuse: why an error is none of the record's own, as one line: pytest counts it as an expected failure; "" for
            any other.
    """

    status: Status
    message: str = ""
    outputs: tuple[OutputRow, ...] = ()
    explanation: str = ""
    device: str = ""
    bench: str = ""
    attachment: Mapping[str, Any] | None = None
    properties: tuple[tuple[str, str | float], ...] = ()
    excuse: str = ""


HeldBy = Literal["both", "target", "golden"]


@dataclass(frozen=True, slots=True)
class StepPosition:
    """The place of one record.

    Attributes:
        order: in the execution of its dump, from 0; -1 where that is unknown.
        cells: Cells or Modules that it ran in, outermost first: `bs.0.Block`, `bs.0.a.Attn`. A Cell's own record ends
            with its own name.
        rank, step: of its dump; None where the folders do not say.
        source: line of the user's script that made the call, `train.py:25, in forward: x = ...`; "" if unknown.
        side: of a comparison, which dumps hold the record.
        partner: of a comparison, the golden record; "" without one.
        partner_cells: Cells that the golden record ran in.
    """

    order: int = -1
    cells: tuple[str, ...] = ()
    rank: int | None = None
    step: int | None = None
    source: str = ""
    side: HeldBy = "both"
    partner: str = ""
    partner_cells: tuple[str, ...] = ()

    @property
    def cell(self) -> str:
        """The innermost Cell that the record ran in; "" outside of any."""
        return self.cells[-1] if self.cells else ""


#: What pytest made of an item: an expected failure (xfail mark) is none of ours, and counts as pytest counts it.
Outcome = Literal["passed", "failed", "skipped", "xfailed", "xpassed"]
#: Of an item without marks.
OUTCOMES: dict[Status, Outcome] = {"pass": "passed", "error": "failed", "skip": "skipped"}


class Change(NamedTuple):
    """What the whole run makes of an item that was reported otherwise.

    Attributes:
        before: what it was reported as.
        after: what it is.
        text: why.
    """

    before: Outcome
    after: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class VerdictRow(Wire):
    """The verdict on one record.

    Attributes:
        node_id: the pytest item.
        dump: path of the dump.json, or of another file that the suite judges.
        call: name of the API call, or what the suite uses instead.
        part: last component of the node id: `forward`, `backward`, or a word of the suite.
        recorded, selected: parts of the call that the dump holds, and those that this run judges.
        status: `pass`, `error` or `skip`.
        outcome: what pytest made of it.
        message: one line on a skip or an error that no output explains, or a note on a pass.
        device, bench: what was tested and against what, "" when it did not come to that.
        outputs: one row per judged value.
        seconds: time the check took.
        seed: of random inputs.
        host: name of the machine that ran it.
        suite: name of the suite that judged it.
        properties: further facts for JUnit, as (name, value).
        attachment: what the suite's own report needs of this record; None for nothing.
        place: where the record stands in its training step; None where its suite does not say.
        explanation: of an error, over several lines: what differs and where.
        run: of the first row that a process writes, how its run was started: `arguments`, `header` lines and
            `version`; None in the others.
    """

    node_id: str
    dump: str
    call: str
    part: str
    recorded: tuple[str, ...]
    selected: tuple[str, ...]
    status: Status
    outcome: Outcome
    message: str = ""
    device: str = ""
    bench: str = ""
    outputs: tuple[OutputRow, ...] = ()
    seconds: float = 0.0
    seed: int = 0
    host: str = ""
    suite: str = ""
    properties: tuple[tuple[str, str | float], ...] = ()
    attachment: Mapping[str, Any] | None = None
    place: StepPosition | None = None
    explanation: str = ""
    run: Mapping[str, Any] | None = None

    @property
    def direction(self) -> Direction | None:
        """`forward` or `backward`, also of `forward-device3`; None for a record that has neither."""
        word = self.part.partition("-")[0]
        return word if word in DIRECTIONS else None

    @property
    def api(self) -> str:
        """What ran, without the number of the call."""
        return self.call.rpartition(".")[0] or self.call

    @property
    def is_plain_pass(self) -> bool:
        """Whether it was judged and passed, and no mark says that it must not."""
        return self.status == "pass" and self.outcome == "passed"

    @property
    def worst(self) -> OutputRow | None:
        """The worst output, which is shown where there is room for one; None when nothing was compared."""
        return max(self.outputs, key=attrgetter("badness"), default=None)

    @property
    def failures(self) -> list[OutputRow]:
        """The outputs that failed."""
        return [output for output in self.outputs if output.status == "error"]

    @property
    def worst_failure(self) -> OutputRow | None:
        """The worst output that failed; None when none did."""
        return max(self.failures, key=attrgetter("badness"), default=None)

    @property
    def record(self) -> str:
        """The name of the record: `Mint.matmul.3.forward`, or that of the call where it has no direction."""
        return f"{self.call}.{self.part}" if self.direction else self.call

    @property
    def rounding(self) -> str:
        """Rounding text of an error: `explained by rounding` when all failed outputs are, else the first other text."""
        failed = list(map(attrgetter("rounding"), self.failures))
        return next(filter(EXPLAINED.__ne__, failed), next(iter(failed), ""))

    @property
    def label(self) -> str:
        """What tells the record from the others of its call, for people: the direction; "" where the call says it."""
        return self.part if self.direction or self.part == "record" else ""

    def with_property(self, name: str, value: str) -> VerdictRow:
        """A copy with property `name` set to `value`; an empty value removes it."""
        others = tuple(entry for entry in self.properties if entry[0] != name)
        return replace(self, properties=(*others, (name, value)) if value else others)


@dataclass(slots=True)
class RowCounts:
    """Running counts over the rows of one suite, in any order; their size does not grow with the number of rows.

    Attributes:
        outcomes: rows by what pytest made of them.
        by_api: the same by API, or by the suite's own kind.
        reasons: skipped rows by reason.
        explained: how many failures rounding explains.
        files: the first part of node ids, by path of the dump.
        standards, devices: what rows that passed were judged by, random ones left out, and what was tested.
        operands: with how few digits the device may have computed, as the run allowed it.
        has_full_operands: whether a product has all digits where nothing says whether the run asked for them.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    by_api: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    explained: int = 0
    files: dict[str, str] = field(default_factory=dict)
    standards: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    operands: set[str] = field(default_factory=set)
    has_full_operands: bool = False

    def count(self, row: VerdictRow) -> None:
        """Count one row."""
        self.outcomes[row.outcome] += 1
        self.has_full_operands |= (DEFAULT_OPERANDS, "none") in row.properties
        self.by_api.setdefault(row.api, Counter())[row.outcome] += 1
        if row.dump not in self.files:
            self.files[row.dump] = row.node_id.partition("::")[0]
        if row.status == "skip":
            self.reasons[row.message] += 1
        elif row.status == "pass":
            self.devices.add(row.device)
            self.operands.update(str(value) for name, value in row.properties if name == "operands")
            if not row.bench.startswith(LAW):
                self.standards.update(map(attrgetter("standard"), row.outputs))
        self.explained += row.outcome == "failed" and row.rounding == EXPLAINED

    @property
    def total(self) -> int:
        """How many rows there were."""
        return self.outcomes.total()


class Figure(NamedTuple):
    """A number that a suite gives of an output, and how reports show it.

    Attributes:
        name: key in `OutputRow.figures`.
        title: headline of its column.
        form: format of the number, such as `.3g`.
        is_low_bad: whether the lowest value is the worst one; else the highest.
    """

    name: str
    title: str
    form: str
    is_low_bad: bool = False

    def worse_of(self, value: float, other: float | None) -> float:
        """The worse of two values, NaN as the worst of all; `value` when there is no other."""
        if math.isnan(value):
            value = -math.inf if self.is_low_bad else math.inf
        if other is None:
            return value
        return min(value, other) if self.is_low_bad else max(value, other)
