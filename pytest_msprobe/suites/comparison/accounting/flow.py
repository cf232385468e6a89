"""The data flow of a step, from the content of its tensors: which record made what another one gets.

Calls that only one side has: which of them comes first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_msprobe.suites.comparison.accounting.account import Step, ValueKey


@dataclass(frozen=True, slots=True)
class Maker:
    """An output that has the content in question."""

    step: Step
    path: str


@dataclass(slots=True)
class _Index:
    """Outputs of one side by content, in the order of execution."""

    makers: dict[str, tuple[list[int], list[Maker]]] = field(default_factory=dict)

    def add(self, key: str, place: int, maker: Maker) -> None:
        places, makers = self.makers.setdefault(key, ([], []))
        places.append(place)
        makers.append(maker)

    def before(self, key: str, place: int) -> list[Maker]:
        """Outputs with this content that were made before `place`, latest first; none for the empty content."""
        places, makers = self.makers.get(key, ([], []))
        return makers[: bisect_left(places, place)][::-1] if key else []


class DataFlow:
    """Makers and users of values among the API calls of one pair of dumps.

    Attributes:
        steps: of API calls by the name of their record, in the order of execution of the target, then golden-only ones.
        parameters: names of parameters by the content of the target's.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        """The flow through `steps`, which are in the order of verdicts."""
        calls = [step for step in steps if not step.operation.is_cell]
        self.steps = {step.record: step for step in calls if step.account.place >= 0}
        self.golden_only = {step.record: step for step in calls if step.account.place < 0}
        self.parameters = _parameter_names(steps)
        self._target, self._golden = _Index(), _Index()
        for step in sorted(calls, key=lambda step: step.account.place):
            for key in step.outputs:
                if key.target and step.account.place >= 0:
                    self._target.add(key.target, step.account.place, Maker(step, key.path))
        for step in sorted(calls, key=lambda step: step.account.partner_place):
            for key in step.outputs:
                if key.golden and step.account.partner_place >= 0:
                    self._golden.add(key.golden, step.account.partner_place, Maker(step, key.path))
        self._users: dict[str, list[tuple[Step, int]]] = {}
        for step in self.steps.values():
            if step.operation.phase == "forward":
                for place, key in enumerate(step.inputs):
                    self._users.setdefault(key.target, []).append((step, place))

    def makers(self, step: Step, key: ValueKey) -> tuple[Maker | None, Maker | None]:
        """Makers of an input in the target and in the golden run; the same record where one made it in both."""
        mine = self._target.before(key.target, step.account.place)
        theirs = self._golden.before(key.golden, step.account.partner_place)
        both = {id(maker.step) for maker in theirs}
        shared = next((maker for maker in mine if id(maker.step) in both), None)
        if shared is not None:
            return shared, shared
        return (mine[0] if mine else None, theirs[0] if theirs else None)

    def may_train(self, step: Step, key: ValueKey) -> bool:
        """Whether the backward of a call may hold a gradient of one of its inputs that no record made.

        False when the inputs that records made are as many as its gradients of that shape.
        """
        backward = self.steps.get(f"{step.operation.call}.backward")
        if backward is None:
            return True
        gradients = sum(gradient.shape == key.shape for gradient in backward.outputs)
        alike = (value for value in step.inputs if value.shape == key.shape and not value.is_integer)
        return gradients > sum(any(self.makers(step, value)) for value in alike)

    def forward_of(self, step: Step) -> Step | None:
        """The forward of a backward."""
        if step.operation.phase != "backward":
            return None
        steps = self.steps if step.account.place >= 0 else self.golden_only
        return steps.get(f"{step.operation.call}.forward")

    def gradient_sources(self, step: Step, key: ValueKey) -> list[tuple[Step, ValueKey]]:
        """The gradients that an incoming gradient is the sum of: those of every use of the forward's output."""
        forward = self.forward_of(step)
        if forward is None:
            return []
        place = key.path.partition(".")[2]  # outputs and their incoming gradients are counted alike
        output = next((value for value in forward.outputs if value.path == f"output.{place}"), None)
        found = []
        for user, at in self._users.get(output.target, []) if output is not None else []:
            if user.account.place <= forward.account.place:
                continue
            backward = self.steps.get(f"{user.operation.call}.backward")
            gradients = list(backward.outputs) if backward is not None else []
            gradient = next((value for value in gradients if value.path == f"output.{at}"), None)
            if gradient is None or gradient.shape != key.shape:  # those of a Primitive stand in any order
                gradient = next((value for value in gradients if value.shape == key.shape), None)
            if backward is not None and gradient is not None:
                found.append((backward, gradient))
        return found


def _parameter_names(steps: Sequence[Step]) -> dict[str, str]:
    """Names of parameters by the content of the target's, from the records of layers."""
    found: dict[str, str] = {}
    for step in steps:
        if step.operation.is_cell and step.operation.phase == "forward":
            path = step.operation.name.partition(".")[2].rpartition(".")[0]
            for key in step.account.keys:
                if key.path.startswith("parameters.") and key.target:
                    found.setdefault(key.target, f"{path}.{key.path.partition('.')[2]}".lstrip("."))
    return found


#: Calls that only one side has, one after the other.
_LONGEST_CHAIN = 100
_CASTS = ("to", "float", "half", "double", "bfloat16", "type", "type_as", "astype", "cast", "to_float")


class CallsOfOneRun:
    """Finds the first of several calls of one side that lead to one difference."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow
        self._leaders: dict[tuple[str, str], Step] = {}

    def first(self, maker: Maker, side: str) -> tuple[Step, Step | None]:
        """(the first of the calls of one side that follow each other up to `maker`, the matched record before it).

        Of a backward, by its forward. What a matched call makes of another dtype because a cast of one side leads to
        it is passed: the cast back comes last.
        """
        step, before = maker.step, None
        for _ in range(_LONGEST_CHAIN):
            step = self._flow.forward_of(step) or step
            makers = [made.step for made in self._makers(step, side)]
            lone = next((made for made in makers if not made.account.partner), None)
            before = next((made for made in makers if made.account.partner), None)
            if lone is None and before is not None and before.account.dtype and before.operation.phase == "forward":
                casts = [made.step for made in self._makers(before, side) if not made.step.account.partner]
                lone = next((cast for cast in casts if is_cast(cast)), None)
            if lone is None or lone.operation.phase != "forward":
                break
            step = lone
        return step, before

    def leader(self, lone: Step, side: str) -> Step:
        """The one by which casts of several inputs of one call are named: the first of them."""
        if not is_cast(lone):
            return lone
        key = lone.record, side
        if key not in self._leaders:
            self._leaders[key] = lone
            users = self._users(lone, side)
            for user in users:
                for maker in self._makers(user, side):
                    if not maker.step.account.partner and is_cast(maker.step):
                        self._leaders.setdefault((maker.step.record, side), lone)
        return self._leaders[key]

    def _users(self, lone: Step, side: str) -> list[Step]:
        made = {key.golden if side == "golden" else key.target for key in lone.outputs}
        return [
            step
            for step in self._flow.steps.values()
            if any((key.golden if side == "golden" else key.target) in made for key in step.inputs)
        ]

    def _makers(self, step: Step, side: str) -> list[Maker]:
        found = (self._flow.makers(step, key)[side == "golden"] for key in step.inputs)
        return [maker for maker in found if maker is not None]


def is_cast(step: Step) -> bool:
    """Whether a call does nothing but change a dtype."""
    return step.operation.bare.rpartition(".")[2].lower() in _CASTS


def has_partner(maker: Maker) -> bool:
    """Whether both sides have the record."""
    return bool(maker.step.account.partner)


def has_other_type(step: Step) -> bool:
    """Whether the partner's API is of another type: `Torch` for `Mint`."""
    partner = step.account.partner
    return bool(partner) and partner.partition(".")[0] != step.record.partition(".")[0]
