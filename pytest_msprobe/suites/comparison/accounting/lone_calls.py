"""Calls that only one side has: which of them comes first."""

from __future__ import annotations

from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, Maker, Step

#: Calls that only one side has, one after the other.
_LONGEST_CHAIN = 100
_CASTS = ("to", "float", "half", "double", "bfloat16", "type", "type_as", "astype", "cast", "to_float")


class LoneCalls:
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
