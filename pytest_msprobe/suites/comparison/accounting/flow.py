"""The data flow of a step: which record made what another one gets, on each side of a comparison.

Evidence, the strongest first: what the collector saw (`Provenance`), equal bytes of a whole output, fingerprints of
elements (`elements.py`), which find views, casts and sums that are not in the dump.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pytest_msprobe.suites.comparison.accounting.account import AccountStep, ValueKey
from pytest_msprobe.suites.comparison.content.values import split_name

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.accounting.elements import ElementSearch

#: How it is known where a value comes from. `written`: the collector saw who wrote its memory; `bytes`: an output has
#: the same bytes; `elements`: its elements are those of outputs; `gradient`: it is the `.grad` of a parameter.
How = Literal["written", "bytes", "elements", "leaf", "gradient", "uninitialized", "unknown"]


@dataclass(frozen=True, slots=True)
class Maker:
    """A value of a record that is, or is part of, the value in question."""

    step: AccountStep
    key: ValueKey

    @property
    def name(self) -> str:
        """`Torch.chunk.0.forward.output.1`, by its name in the target where that has it."""
        return f"{self.step.record}.{self.key.path}"

    @property
    def identity(self) -> tuple[bool, str]:
        """What tells it from all others: calls of one run may have the name of another call of the other run."""
        return self.step.account.place < 0, self.name


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Where one side has a value from.

    Attributes:
        how: see `How`.
        makers: who made it: several names of one value, the surest first; where it `is_joined`, all of them together.
        name: of the parameter that it is, or whose gradient it is; "" when unknown.
        view: which part or order of the memory of its maker it is, "" where it is all or nothing is known.
        is_changed: whether something that is no record changed it since.
        is_joined: whether it is put together of what its makers made.
    """

    how: How = "unknown"
    makers: tuple[Maker, ...] = ()
    name: str = ""
    view: str = ""
    is_changed: bool = False
    is_joined: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether it is certain enough where the value comes from to say that it is somewhere else."""
        return bool(self.makers) or self.how == "leaf"

    @property
    def first_name(self) -> str:
        """The earliest name of the value, which is that of the call that made it."""
        return self.makers[-1].name if self.makers else self.text

    @property
    def identities(self) -> tuple[tuple[bool, str], ...]:
        """What tells its makers from all others."""
        return tuple(maker.identity for maker in self.makers)

    @property
    def text(self) -> str:
        """What it is, by name."""
        if self.how == "leaf":
            return f"parameter {self.name}".strip()
        most = 8 if self.is_joined else 1
        return " and ".join(maker.name for maker in self.makers[:most]) or "what no record made"


@dataclass(slots=True)
class SideFlow:
    """The values of one side: who made them.

    Attributes:
        is_golden: which side.
        search: finds makers by the elements of values; None where the dump says who made them, or is not at hand.
        says_makers: whether the dump does.
    """

    is_golden: bool
    search: ElementSearch | None = None
    says_makers: bool = False
    _steps: dict[str, AccountStep] = field(default_factory=dict)
    _outputs: dict[str, tuple[list[int], list[Maker]]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _sources: dict[tuple[str, str], ValueSource] = field(default_factory=dict)

    def add(self, steps: Sequence[AccountStep]) -> None:
        """Take all records of the step; layers name parameters."""
        for step in sorted(steps, key=self.place):
            if self.place(step) < 0:
                continue
            if step.operation.is_cell:
                self._add_names(step)
            if step.operation.holds_calls:
                continue
            self._steps[self.record(step)] = step
            self.says_makers |= any(key.origins[self.is_golden].made_by for key in step.account.keys)
            for key in step.outputs:
                if (content := self.content(key)) and not key.is_weak:
                    places, makers = self._outputs.setdefault(content, ([], []))
                    places.append(self.place(step))
                    makers.append(Maker(step, key))

    def place(self, step: AccountStep) -> int:
        """Place of a record in the order of execution of this side; -1 where it has no such record."""
        return step.account.partner_place if self.is_golden else step.account.place

    def record(self, step: AccountStep) -> str:
        """Name of a record on this side."""
        return (step.account.partner or step.record) if self.is_golden else step.record

    def content(self, key: ValueKey) -> str:
        """Key of the content of a value on this side; "" where it has none."""
        return key.golden if self.is_golden else key.target

    def source(self, step: AccountStep, key: ValueKey) -> ValueSource:
        """Where a record has a value from that goes into it."""
        place = self.record(step), key.path
        if place not in self._sources:
            self._sources[place] = self._source(step, key)
        return self._sources[place]

    def maker(self, record: str, path: str) -> Maker | None:
        """The value at `path` of `record`, as this side calls both."""
        if (step := self._steps.get(record)) is not None:
            for key in step.account.keys:
                if path == self.path(key):
                    return Maker(step, key)
        return None

    def path(self, key: ValueKey) -> str:
        """Place of a value in its record of this side."""
        return (self.is_golden and key.golden_path) or key.path

    def unheld(self, key: ValueKey) -> str:
        """Which record made a value, or that backward did, where this side does not hold it; "" for none."""
        origin = key.origins[self.is_golden]
        if origin.made_by and not is_held(origin.made_by, self._steps):
            return origin.made_by
        if not origin.grad_of or any(step.operation.phase == "backward" for step in self._steps.values()):
            return ""
        return f"the backward of {origin.grad_of}"

    def _source(self, step: AccountStep, key: ValueKey) -> ValueSource:
        origin, place = key.origins[self.is_golden], self.place(step)
        if origin.is_uninitialized:
            return ValueSource("uninitialized")
        content = self.content(key)
        places, makers = self._outputs.get(content, ([], []))
        equal = [] if key.is_weak else makers[: bisect_left(places, place)][::-1]
        written = self.maker(*split_name(origin.made_by))
        if written is not None and self.place(written.step) < place:
            others = (maker for maker in equal if maker.key is not written.key)
            return ValueSource("written", (written, *others), "", origin.view, origin.is_changed)
        name = "" if key.is_weak else self._names.get(content, "")
        if origin.leaf is not None or name:
            return ValueSource("leaf", name=origin.leaf or name)
        if origin.grad_of:
            return ValueSource("gradient", tuple(equal), origin.grad_of)
        if equal:
            return ValueSource("bytes", tuple(equal))
        return self._by_elements(step, key) if content and not key.is_weak else ValueSource()

    def _by_elements(self, step: AccountStep, key: ValueKey) -> ValueSource:
        if self.search is None:
            return ValueSource()
        source = self.search.source(self.record(step), self.path(key), self.place(step))
        if source is None:
            return ValueSource()
        makers = (self.maker(candidate.record, candidate.path) for candidate in source.makers)
        held = tuple(filter(None, makers))
        return ValueSource("elements", held, view=source.how, is_joined=len(held) > 1)

    def _add_names(self, step: AccountStep) -> None:
        """Names of parameters, from the record of a layer."""
        if step.operation.phase != "forward":
            return
        path = step.operation.name.partition(".")[2].rpartition(".")[0]
        for key in step.account.keys:
            if _is_parameter(key) and (content := self.content(key)) and not key.is_weak:
                self._names.setdefault(content, f"{path}.{key.path.partition('.')[2]}".lstrip("."))


@dataclass(slots=True)
class _Uses:
    """(forward, input) of all uses: of outputs by record and place, of parameters by name."""

    of_outputs: dict[tuple[str, str], list[tuple[AccountStep, ValueKey]]] = field(default_factory=dict)
    of_leaves: dict[str, list[tuple[AccountStep, ValueKey]]] = field(default_factory=dict)


class DataFlow:
    """Where values come from among the API calls of one pair of dumps.

    Attributes:
        steps: of API calls by the name of their record, in the order of execution of the target.
        golden_only: of those that only the golden run has.
        sides: of the target and of the golden run.
        cells, optimizers: of layers and of optimizers, in that order.
        batch: contents of what goes into the outermost layers, on both sides.
    """

    def __init__(
        self, steps: Sequence[AccountStep], searches: tuple[ElementSearch | None, ElementSearch | None] = (None, None)
    ) -> None:
        """The flow through `steps`, which are in the order of verdicts."""
        calls = sorted((step for step in steps if not step.operation.holds_calls), key=lambda step: step.account.place)
        self._calls = calls
        self.steps = {step.record: step for step in calls if step.account.place >= 0}
        self.golden_only = {step.record: step for step in calls if step.account.place < 0}
        self.sides = SideFlow(is_golden=False, search=searches[0]), SideFlow(is_golden=True, search=searches[1])
        for side in self.sides:
            side.add(steps)
        self.cells = sorted((step for step in steps if step.operation.is_cell), key=lambda step: step.account.place)
        self.optimizers = [step for step in steps if step.operation.holds_calls and not step.operation.is_cell]
        outermost = [step for step in self.cells if len(step.cells) == 1]
        self.batch = {(key.target, key.golden) for step in outermost for key in step.inputs if not _is_parameter(key)}

    @property
    def forwards(self) -> list[AccountStep]:
        """The forwards of the target."""
        return [step for step in self.steps.values() if step.operation.phase == "forward"]

    def sources(self, step: AccountStep, key: ValueKey) -> tuple[ValueSource, ValueSource]:
        """Where the target and the golden run have an input from."""
        return self.sides[0].source(step, key), self.sides[1].source(step, key)

    def unheld(self, key: ValueKey) -> str:
        """What made a value, as the dumps tell, and they do not hold on one of the sides; "" for none."""
        return self.sides[0].unheld(key) or self.sides[1].unheld(key)

    @property
    def says_makers(self) -> bool:
        """Whether both dumps say who made values."""
        return self.sides[0].says_makers and self.sides[1].says_makers

    @property
    def says_no_makers(self) -> bool:
        """Whether neither of them does."""
        return not (self.sides[0].says_makers or self.sides[1].says_makers)

    def forward_of(self, step: AccountStep) -> AccountStep | None:
        """The forward of a backward."""
        if step.operation.phase != "backward":
            return None
        steps = self.steps if step.account.place >= 0 else self.golden_only
        return steps.get(f"{step.operation.call}.forward")

    def backward_of(self, step: AccountStep) -> AccountStep | None:
        """The backward of a call of the target; None where the dump has none."""
        return self.steps.get(f"{step.operation.call}.backward")

    def gradient_sources(self, step: AccountStep, key: ValueKey) -> list[Maker]:
        """The gradients that an incoming gradient is the sum of: those of every use of the forward's output."""
        forward = self.forward_of(step)
        if forward is None:
            return []
        place = key.path.partition(".")[2]  # outputs and their incoming gradients are counted alike
        return list(self._gradients(self.users(forward, f"output.{place}"), forward.account.place))

    def gradients_of(self, parameter: str, before: int) -> list[Maker]:
        """The gradients that the gradient of `parameter` is the sum of, of records before the place `before`."""
        makers = self._gradients(self._uses.of_leaves.get(parameter, []), -1)
        return [maker for maker in makers if maker.step.account.place < before]

    def given_elsewhere(self, key: ValueKey) -> str | None:
        """Which value of the golden run this value of the target is, of those that no record made; None for another."""
        return self._unmade_golden.get(key.target) if key.target != key.golden else None

    @cached_property
    def _unmade_golden(self) -> dict[str, str]:
        """The first name of each value that goes into a forward of the golden run and that no record made."""
        names: dict[str, str] = {}
        side = self.sides[1]
        for step in self._calls:
            if step.operation.phase != "forward":
                continue
            for key in step.inputs:
                content = side.content(key)
                if content and not key.is_weak and side.source(step, key).how == "unknown":
                    names.setdefault(content, f"{side.record(step)}.{key.path}")
        return names

    def users(self, step: AccountStep, path: str) -> list[tuple[AccountStep, ValueKey]]:
        """The forwards of the target that use an output of `step`, with the place where they get it."""
        return self._uses.of_outputs.get((step.record, path), [])

    @cached_property
    def _uses(self) -> _Uses:
        """What the forwards of the target use."""
        uses = _Uses()
        for step in self.forwards:
            for key in step.inputs:
                source = self.sides[0].source(step, key)
                if source.how == "leaf":
                    uses.of_leaves.setdefault(source.name, []).append((step, key))
                for maker in source.makers:
                    place = maker.step.record, maker.key.path
                    uses.of_outputs.setdefault(place, []).append((step, key))
        return uses

    def _gradients(self, uses: Sequence[tuple[AccountStep, ValueKey]], after: int) -> Iterator[Maker]:
        for user, key in uses:
            backward = self.backward_of(user)
            # What needs no gradient is detached, or data.
            if backward is not None and user.account.place > after and key.trains[0] != "False":
                gradient = gradient_of(user, key, backward)
                if gradient is not None:
                    yield Maker(backward, gradient)


def is_held(made_by: str, records: Container[str]) -> bool:
    """Whether one of `records` is that of a value such as `Torch.chunk.0.forward.output.1`."""
    while made_by := made_by.rpartition(".")[0]:
        if made_by in records:
            return True
    return False


def _is_parameter(key: ValueKey) -> bool:
    return key.path.startswith("parameters.")


def gradient_of(forward: AccountStep, key: ValueKey, backward: AccountStep) -> ValueKey | None:
    """The gradient of an input of `forward` among the outputs of its `backward`; None where it has none.

    Those of positional tensors are counted; those in lists and keywords carry their place. Those of a Primitive stand
    in any order, so that the shape decides where the place does not fit.
    """
    gradients = {gradient.path: gradient for gradient in backward.outputs}
    inner = key.path.partition(".")[2]
    for path in (f"other_gradients.input.{inner}", f"other_gradients.kwargs.{inner}"):
        if path in gradients:
            return gradients[path]
    everything = [value.path for value in forward.inputs]
    positional = [path for path in everything if path.count(".") == 1 and path[6:].isdecimal()]
    for order in (positional, everything):
        if key.path in order:
            gradient = gradients.get(f"output.{order.index(key.path)}")
            if gradient is not None and gradient.shape == key.shape:
                return gradient
    alike = [gradient for gradient in gradients.values() if gradient.shape == key.shape]
    return alike[0] if len(alike) == 1 else None
